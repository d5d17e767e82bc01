// Resolves host names in the statically linked isthmus-coordinator; the linker redirects calls of getaddrinfo
// to this file. glibc reads /etc/hosts and asks DNS by itself. Other services in nsswitch.conf are shared
// libraries, which a static program cannot load from another version of glibc.

#include <netdb.h>
#include <nss.h>

#include <string_view>

// --wrap=getaddrinfo of the linker determines these names.
extern "C" int __real_getaddrinfo(const char* node, const char* service, const addrinfo* hints,
                                  addrinfo** result);

extern "C" int __wrap_getaddrinfo(const char* node, const char* service, const addrinfo* hints,
                                  addrinfo** result) {
  static const int configured = __nss_configure_lookup("hosts", "files dns");
  if (configured != 0) return EAI_SYSTEM;
  const int error = __real_getaddrinfo(node, service, hints, result);
  // Some machines have no /etc/hosts, such as a container with only this program.
  if (error != 0 && node != nullptr && std::string_view(node) == "localhost")
    return __real_getaddrinfo("127.0.0.1", service, hints, result);
  return error;
}
