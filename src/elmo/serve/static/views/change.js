import { html } from "../vendor/preact.js";

export default {
  id: "change",
  requires: "periods",
  defaults: () => ({}),
  View: ({ t }) => html`<p class="message">${t("app.soon")}</p>`,
};
