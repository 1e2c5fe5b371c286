// Makes what is there into what came, touching only what differs: focus, scrolling and selections stay.
export function morph(element, html) {
  const wanted = document.createElement("template");
  wanted.innerHTML = html;
  children(element, wanted.content);
}

function children(now, wanted) {
  const others = [...wanted.childNodes];
  const ids = new Set(others.map((other) => other.id).filter(Boolean));
  // What is gone goes first, and what comes is put between: what stays is not touched, and keeps the focus.
  for (const one of [...now.children]) if (one.id && !ids.has(one.id)) remove(one);
  others.forEach((other, at) => {
    const one = now.childNodes[at];
    ids.delete(other.id);
    if (!one) now.append(other);
    else if (one.id && ids.has(one.id)) one.before(other);
    else if (one.nodeType !== other.nodeType || one.nodeName !== other.nodeName || one.id !== other.id) one.replaceWith(other);
    else if (one.nodeType === Node.ELEMENT_NODE) same(one, other);
    else if (one.nodeValue !== other.nodeValue) one.nodeValue = other.nodeValue;
  });
  while (now.childNodes.length > others.length) now.lastChild.remove();
}

function remove(one) {
  if (one.nextSibling?.nodeType === Node.TEXT_NODE) one.nextSibling.remove();
  one.remove();
}

function same(one, other) {
  // A time says the same for as long as it is the same time: a script tells it.
  const isSameTime = one.nodeName === "TIME" && one.dateTime === other.dateTime;
  for (const { name, value } of other.attributes) if (one.getAttribute(name) !== value) one.setAttribute(name, value);
  for (const { name } of [...one.attributes]) if (!other.hasAttribute(name) && !KEPT.has(name)) one.removeAttribute(name);
  if (!isSameTime) children(one, other);
}

// What the reader did to an element, not the server.
const KEPT = new Set(["hidden", "open"]);
