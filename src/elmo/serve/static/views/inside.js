import { html } from "../vendor/preact.js";

export default {
  id: "inside",
  requires: null,
  defaults: () => ({}),
  View: ({ t }) => html`<p class="message">${t("app.soon")}</p>`,
};
