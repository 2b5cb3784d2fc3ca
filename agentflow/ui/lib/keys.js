// Keys of one character: people who speak to their computer, or who slip, can turn them off (WCAG 2.1.4).

const NAME = "single-keys";
let isOn = read();

export const usesKeys = () => isOn;

/** @param {boolean} on */
export function useKeys(on) {
  isOn = on;
  try {
    localStorage.setItem(NAME, on ? "on" : "off");
  } catch {
    // for this page only, then
  }
}

/**
 * Return whether a key that was pressed is one of the page: with Ctrl, Alt or Meta it is the browser's.
 * @param {KeyboardEvent} event
 */
export function isKey(event) {
  return !event.ctrlKey && !event.metaKey && !event.altKey && (isOn || event.key.length > 1);
}

function read() {
  try {
    return localStorage.getItem(NAME) !== "off";
  } catch {
    return true;
  }
}
