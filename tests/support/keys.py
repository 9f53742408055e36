"""The bytes that a terminal writes for keys."""

ALT_ENTER, BACKSPACE, DOWN, ESC, UP = "\x1b\r", "\x7f", "\x1b[B", "\x1b", "\x1b[A"
CTRL_C, CTRL_D, CTRL_E, CTRL_G, CTRL_J, CTRL_L = "\x03", "\x04", "\x05", "\x07", "\n", "\x0c"
CTRL_R, CTRL_S, CTRL_U, CTRL_X, CTRL_Z = "\x12", "\x13", "\x15", "\x18", "\x1a"
