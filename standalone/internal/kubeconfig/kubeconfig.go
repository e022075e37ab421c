// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubeconfig writes kubeconfigs: WriteForPeople and WriteForPrograms.
package kubeconfig

import (
	"os"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"cloudnative.tw/drover/internal/atomicfile"
	"cloudnative.tw/drover/standalone/internal/pki"
)

// name of the cluster, the user and the context.
const name = "drover"

// WriteForPeople embeds the certificate in the file, so that it can be copied. It must
// be called again when the certificate is renewed.
func WriteForPeople(path, url, caFile, certFile string) error {
	ca, err := os.ReadFile(caFile) //nolint:gosec // The caller chose the file.
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

// WriteForPrograms refers to the files, so that a long-running program continues after a
// renewal.
func WriteForPrograms(path, url, caFile, certFile string) error {
	return writeConfig(path,
		&clientcmdapi.Cluster{Server: url, CertificateAuthority: caFile},
		&clientcmdapi.AuthInfo{ClientCertificate: certFile, ClientKey: certFile})
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
