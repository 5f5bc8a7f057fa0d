// Puts a part's text into the clipboard. Without TLS that is closed to pages of other machines: then
// the text is marked, and can be copied by hand. Returns whether it was copied.
export const copyText = async (source) => {
  try {
    await navigator.clipboard.writeText(source.textContent);
    return true;
  } catch {
    getSelection().selectAllChildren(source);
    return false;
  }
};
