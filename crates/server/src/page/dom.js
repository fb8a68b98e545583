// Nodes of the document.

const element = (name, options = {}, ...children) => {
  const { text, ...rest } = options;
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(rest)) {
    if (key in made) made[key] = value; else made.setAttribute(key, value);
  }
  if (text !== undefined) made.textContent = text;
  made.append(...children);
  return made;
};

const button = (text, label, act) => {
  const made = element("button", { type: "button", text, "aria-label": label, title: label });
  made.addEventListener("click", () => act(made));
  return made;
};

// Puts a text on the clipboard; the button reports it.
const copied = async (pressed, text) => {
  const before = pressed.textContent;
  try { await navigator.clipboard.writeText(text); pressed.textContent = "Copied"; }
  catch { pressed.textContent = "Copying is not allowed here"; }
  setTimeout(() => { pressed.textContent = before; }, 1500);
};

// Enter sends, Shift and Enter begins a line, Escape cancels: the same in every field of the page. `cancel` returns false if there is nothing
// to cancel.
const keys = (field, { send, cancel }) => {
  field.addEventListener("keydown", (event) => {
    // While a word is being composed, both keys are part of that.
    if (event.isComposing) return;
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      send();
    } else if (event.key === "Escape" && cancel) {
      if (cancel() === false) return;
      event.preventDefault();
      event.stopPropagation();
    }
  });
};

// Gives the person a file.
const download = (name, text, type) => {
  const address = URL.createObjectURL(new Blob([text], { type }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
};

Object.assign(Alight, { element, button, copied, keys, download });
