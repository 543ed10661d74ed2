// What xterm.js gets in place of its `<style>` elements.
//
// xterm makes style elements and sets `style` attributes, which `default-src 'self'` forbids. What a script does through the
// CSS object model is allowed. So build.mjs puts this function in the place of `createElement("style")`, and `style.cssText` in
// that of the attribute: no exception in the policy is needed.

/** Returns an element whose text is a style sheet of the page for as long as it is in it. */
export function sheetElement(): HTMLElement {
  const element = document.createElement("template");
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets.push(sheet);
  Object.defineProperty(element, "textContent", { set: (text: string) => sheet.replaceSync(text) });
  element.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((each) => each !== sheet);
    Element.prototype.remove.call(element);
  };
  return element;
}
