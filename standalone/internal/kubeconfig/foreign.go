// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeconfig

import (
	"fmt"
	"reflect"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"cloudnative.tw/drover/internal/login"
	"cloudnative.tw/drover/standalone/internal/datadir"
)

// ForRoot returns a path at which root may read a kubeconfig. If another user could change the file,
// ForRoot checks its content and returns the path of a copy in memory, which nobody can change. An
// unchecked kubeconfig could name programs for root to run, or files for root to send away.
func ForRoot(path string) (string, error) {
	owner, _, err := datadir.Owner(path)
	if err != nil || owner == 0 {
		return path, err
	}
	content, info, err := datadir.Read(path)
	if err == nil && datadir.OwnerOf(info) != owner {
		err = fmt.Errorf("%s has just been replaced by another user's file", path)
	}
	if err != nil {
		return "", err
	}
	plain, err := parseInline(path, content)
	if err != nil {
		return "", fmt.Errorf("%w: set KUBECONFIG to the file if root may use it", err)
	}
	if content, err = clientcmd.Write(*plain); err != nil {
		return "", err
	}
	return login.KeepInMemory(content)
}

// parseInline parses a kubeconfig. It returns an error if the kubeconfig names a program, a file or a proxy.
func parseInline(path string, content []byte) (*clientcmdapi.Config, error) {
	config, err := clientcmd.Load(content)
	if err == nil {
		config, err = copyInline(config)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return config, nil
}

// copyInline copies the fields of a kubeconfig that cannot name a program, a file or a proxy. It
// returns an error if the kubeconfig has other fields.
func copyInline(config *clientcmdapi.Config) (*clientcmdapi.Config, error) {
	plain := clientcmdapi.NewConfig()
	plain.CurrentContext = config.CurrentContext
	for name, c := range config.Clusters {
		copied := &clientcmdapi.Cluster{
			Server: c.Server, TLSServerName: c.TLSServerName, InsecureSkipTLSVerify: c.InsecureSkipTLSVerify,
			CertificateAuthorityData: c.CertificateAuthorityData, DisableCompression: c.DisableCompression,
			Extensions: c.Extensions,
		}
		if !reflect.DeepEqual(copied, c) {
			return nil, fmt.Errorf("its cluster %q names a file or a proxy", name)
		}
		copied.Extensions, plain.Clusters[name] = nil, copied
	}
	for name, u := range config.AuthInfos {
		copied := &clientcmdapi.AuthInfo{
			ClientCertificateData: u.ClientCertificateData, ClientKeyData: u.ClientKeyData, Token: u.Token,
			Username: u.Username, Password: u.Password, Extensions: u.Extensions,
			Impersonate: u.Impersonate, ImpersonateUID: u.ImpersonateUID, ImpersonateGroups: u.ImpersonateGroups, ImpersonateUserExtra: u.ImpersonateUserExtra,
		}
		if !reflect.DeepEqual(copied, u) {
			return nil, fmt.Errorf("its user %q names a program, a plugin or a file to log in with", name)
		}
		copied.Extensions, plain.AuthInfos[name] = nil, copied
	}
	for name, c := range config.Contexts {
		plain.Contexts[name] = &clientcmdapi.Context{Cluster: c.Cluster, AuthInfo: c.AuthInfo, Namespace: c.Namespace}
	}
	return plain, nil
}
