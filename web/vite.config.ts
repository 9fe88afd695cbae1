import { defineConfig } from "vite";

export default defineConfig({
  // Built into the package, so that the server finds it beside its code.
  build: {
    outDir: "../src/gpuyard/server/web_files",
    emptyOutDir: true,
    modulePreload: { polyfill: false },
  },
});
