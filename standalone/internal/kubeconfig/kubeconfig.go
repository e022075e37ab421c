// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubeconfig writes kubeconfigs (WriteForPeople, WriteForPrograms) and reads them (Read).
package kubeconfig

import (
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"cloudnative.tw/drover/internal/atomicfile"
	"cloudnative.tw/drover/standalone/internal/datadir"
	"cloudnative.tw/drover/standalone/internal/pki"
)

// name is the name of the cluster, the user and the context.
const name = "drover"

// WriteForPeople writes a kubeconfig that contains the certificate, so that people can copy the
// file. It must be called again when the certificate is renewed.
func WriteForPeople(path, url, caFile, certFile string) error {
	ca, _, err := datadir.Read(caFile)
	if err != nil {
		return err
	}
	cert, key, err := pki.Split(certFile)
	if err != nil {
		return err
	}
	return writeConfig(path,
		&clientcmdapi.Cluster{Server: url, CertificateAuthorityData: ca},
		&clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key})
}

// WriteForPrograms writes a kubeconfig that names the files of the certificates, so that a
// long-running program reads them again after a renewal.
func WriteForPrograms(path, url, caFile, certFile string) error {
	return writeConfig(path,
		&clientcmdapi.Cluster{Server: url, CertificateAuthority: caFile},
		&clientcmdapi.AuthInfo{ClientCertificate: certFile, ClientKey: certFile})
}

// Read returns the client configuration in a kubeconfig that WriteForPeople has written. It returns an
// error for a kubeconfig that names a program, a file or a proxy, and never falls back to another cluster.
func Read(path string) (*rest.Config, error) {
	content, _, err := datadir.Read(path)
	if err != nil {
		return nil, err
	}
	config, err := parseInline(path, content)
	if err != nil {
		return nil, err
	}
	return clientcmd.NewDefaultClientConfig(*config, &clientcmd.ConfigOverrides{}).ClientConfig()
}

func writeConfig(path string, cluster *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) error {
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
