import { html } from "../vendor/preact.js";

export default {
  id: "corpus",
  requires: "index",
  defaults: () => ({}),
  View: ({ t }) => html`<p class="message">${t("app.soon")}</p>`,
};
