// The lab as a page of its own: questions go to the server that sent it, the state lives in the address.
import { inAddress } from "./address.js";
import { overHttp } from "./connection.js";
import { mount } from "./lab.js";

mount(document.getElementById("lab"), { ask: overHttp(new URL("ask/", document.baseURI)), address: inAddress(window) });
