"use strict";
// Everything can be read without this: it opens and closes what is folded.
(() => {
  const folded = [...document.querySelectorAll("main details")];
  const reveal = () => {
    const id = decodeURIComponent(location.hash.slice(1));
    const target = id && document.getElementById(id);
    if (!target) return;
    for (let each = target; each; each = each.parentElement) if (each.localName === "details") each.open = true;
    target.scrollIntoView();
  };
  const tools = document.querySelector(".tools");
  if (tools && folded.length) {
    for (const [text, open] of [["Open all", true], ["Close all", false]]) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = text;
      button.addEventListener("click", () => folded.forEach((each) => { each.open = open; }));
      tools.append(button);
    }
    tools.hidden = false;
  }
  addEventListener("hashchange", reveal);
  reveal();
})();
