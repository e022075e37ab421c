// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"os"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"cloudnative.tw/drover/standalone/internal/atomicfile"
	"cloudnative.tw/drover/standalone/internal/pki"
)

// WriteKubeconfig writes the kubeconfig for people. Its certificate is inside,
// so that it can be copied; it is written again when that is renewed.
func (c *Config) WriteKubeconfig() error {
	ca, err := os.ReadFile(c.Keys.CABundle())
	if err != nil {
		return err
	}
	cert, key, err := pki.Split(c.Keys.Admin())
	if err != nil {
		return err
	}
	return write(c.Dir.Kubeconfig(),
		&clientcmdapi.Cluster{Server: c.URL(), CertificateAuthorityData: ca},
		&clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key})
}

// writeFileKubeconfig writes one that names the files, so that its user goes on
// after a renewal.
func (c *Config) writeFileKubeconfig(path, certFile string) error {
	return write(path,
		&clientcmdapi.Cluster{Server: c.URL(), CertificateAuthority: c.Keys.CABundle()},
		&clientcmdapi.AuthInfo{ClientCertificate: certFile, ClientKey: certFile})
}

func write(path string, cluster *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) error {
	const name = "drover"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = cluster
	config.AuthInfos[name] = user
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name, Namespace: "default"}
	config.CurrentContext = name
	data, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	return atomicfile.Update(path, data, 0o600)
}
