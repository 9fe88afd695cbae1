import { defineConfig } from "vite";

export default defineConfig({
  // Built into the package, so that the server finds it beside its code.
  build: {
    outDir: "../src/gpuyard/server/web_files",
    emptyOutDir: true,
    modulePreload: { polyfill: false },
    // A file of its own, so that nothing in the page is an address outside.
    assetsInlineLimit: 0,
  },
});
