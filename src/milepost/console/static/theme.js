// Light or dark: what the system says, unless the reader has chosen; the server draws the next page with it.
export function beginTheme() {
  const root = document.documentElement;
  document.querySelector("[data-theme-switch]")?.addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    const path = new URL(document.querySelector(".brand").href).pathname;
    document.cookie = `milepost_theme=${root.dataset.theme}; path=${path}; max-age=31536000; samesite=strict`;
  });
}
