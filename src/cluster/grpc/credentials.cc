// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "cluster/grpc/grpc_cluster.h"
#include "cluster/grpc/wire.h"

namespace tutti::cluster {

namespace {

std::string read(const char* what, const std::string& path) {
  if (path.empty())
    throw InvalidArgumentError(fmt::format(
        "TLS: the job has no {}; it needs a certificate, its key and the authority", what));
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  const std::string problem = fmt::format("TLS: cannot read the {} {}", what, path);
  if (!file.is_open() && errno == ENOENT)
    throw NotFoundError(fmt::format("{}: there is no such file", problem));
  if (!file.is_open())
    throw InvalidArgumentError(fmt::format("{}: {}", problem, std::strerror(errno)));
  return text.str();
}

// gRPC accepts unusable files without an error and then never connects.
void check_files(const Job& job) {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_method()),
                                                                  SSL_CTX_free);
  SSL_CTX_set_default_passwd_cb(context.get(), [](char*, int, int, void*) { return -1; });
  const auto require = [](bool usable, const std::string& problem) {
    ERR_clear_error();
    if (!usable) throw InvalidArgumentError("TLS: " + problem);
  };
  require(SSL_CTX_load_verify_locations(context.get(), job.authority.c_str(), nullptr) == 1,
          fmt::format("the certificate authority {} is not a certificate in PEM format",
                      job.authority));
  require(SSL_CTX_use_certificate_chain_file(context.get(), job.certificate.c_str()) == 1,
          fmt::format("the certificate {} is not one in PEM format", job.certificate));
  require(SSL_CTX_use_PrivateKey_file(context.get(), job.key.c_str(), SSL_FILETYPE_PEM) == 1,
          fmt::format("the key {} is not one in PEM format, has a passphrase, or belongs to "
                      "another certificate than {}",
                      job.key, job.certificate));
}

struct Pems {
  std::string certificate, key, authority;
};

Pems read_pems(const Job& job) {
  Pems pems{read("certificate", job.certificate), read("key", job.key),
            read("certificate authority", job.authority)};
  check_files(job);
  return pems;
}

}  // namespace

bool uses_tls(const Job& job) {
  return !job.certificate.empty() || !job.key.empty() || !job.authority.empty();
}

void check(const Job& job) {
  if (job.addresses.empty()) throw InvalidArgumentError("a job needs at least one address");
  if (job.token.size() > kLargestToken)
    throw InvalidArgumentError(fmt::format("the job's token has {} bytes; at most {} are taken",
                                           job.token.size(), kLargestToken));
  if (std::min(job.heartbeat_interval, job.heartbeat_timeout) <= std::chrono::nanoseconds(0))
    throw InvalidArgumentError(fmt::format(
        "a heartbeat every {} and a heartbeat timeout of {}: both must be greater than 0",
        in_seconds(job.heartbeat_interval), in_seconds(job.heartbeat_timeout)));
}

std::shared_ptr<grpc::ServerCredentials> server_credentials(const Job& job) {
  if (!uses_tls(job)) return grpc::InsecureServerCredentials();
  const Pems pems = read_pems(job);
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = pems.authority;
  options.pem_key_cert_pairs.push_back({pems.key, pems.certificate});
  return grpc::SslServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> channel_credentials(const Job& job) {
  if (!uses_tls(job)) return grpc::InsecureChannelCredentials();
  const Pems pems = read_pems(job);
  return grpc::SslCredentials({pems.authority, pems.key, pems.certificate});
}

}  // namespace tutti::cluster
