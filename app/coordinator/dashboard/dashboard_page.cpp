#include "coordinator/dashboard/dashboard_page.h"

#include <fmt/format.h>

#include <utility>

#include "coordinator/dashboard/assets.h"
#include "run/output/chart_js.h"

namespace isthmus::app {

std::string dashboard_page(std::string_view nonce) {
  std::string page = fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n"
      "<title>Isthmus</title>\n<style nonce=\"{}\">\n",
      nonce);
  page += assets::dashboard_css();
  page += "</style>\n</head>\n<body>\n";
  page += assets::dashboard_html();
  for (const auto& script : {assets::chart_js(), assets::dashboard_js()}) {
    page += fmt::format("<script nonce=\"{}\">\n", nonce);
    page += script;
    page += "</script>\n";
  }
  return page + "</body>\n</html>\n";
}

outer_sync::PageServer::Pages dashboard_pages(const outer_sync::Address& address, const std::string& token,
                                              const std::string& nonce, std::function<std::string()> json) {
  const auto headers = fmt::format(
      "Content-Security-Policy: default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; "
      "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
      "X-Content-Type-Options: nosniff\r\n"
      "X-Frame-Options: DENY\r\n"
      "Referrer-Policy: no-referrer\r\n"
      "Cross-Origin-Resource-Policy: same-origin\r\n"
      "Cache-Control: no-store\r\n",
      nonce);
  return {.pages = {{.path = "/",
                     .type = "text/html; charset=utf-8",
                     .text = [nonce] { return dashboard_page(nonce); }},
                    {.path = "/status.json", .type = "application/json", .text = std::move(json)}},
          .headers = headers,
          .token = address.is_loopback() ? std::string() : token,
          .only_for_loopback = address.is_loopback()};
}

std::string dashboard_url(outer_sync::Address address, const std::string& token, const std::string& machine) {
  const bool needs_token = !address.is_loopback();
  if (address.host == "0.0.0.0" || address.host == "::") address.host = machine;
  return fmt::format("http://{}/{}{}", address.to_string(), needs_token ? "?token=" : "",
                     needs_token ? token : std::string());
}

}  // namespace isthmus::app
