// Host names in the statically linked isthmus-coordinator, whose calls of getaddrinfo the linker sends here.
// glibc resolves by /etc/hosts and DNS without help; the other services that a machine's nsswitch.conf may
// name are shared libraries, which a static program cannot load from another version of glibc.

#include <netdb.h>
#include <nss.h>

#include <string_view>

// The names are the linker's: --wrap=getaddrinfo.
extern "C" int __real_getaddrinfo(const char* node, const char* service, const addrinfo* hints,
                                  addrinfo** result);

extern "C" int __wrap_getaddrinfo(const char* node, const char* service, const addrinfo* hints,
                                  addrinfo** result) {
  static const int configured = __nss_configure_lookup("hosts", "files dns");
  if (configured != 0) return EAI_SYSTEM;
  const int error = __real_getaddrinfo(node, service, hints, result);
  // A machine without /etc/hosts, such as a container made of this program alone.
  if (error != 0 && node != nullptr && std::string_view(node) == "localhost")
    return __real_getaddrinfo("127.0.0.1", service, hints, result);
  return error;
}
