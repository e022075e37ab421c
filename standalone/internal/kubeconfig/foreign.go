// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeconfig

import (
	"fmt"
	"reflect"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"cloudnative.tw/drover/standalone/internal/datadir"
)

// ForRoot returns a path at which root may read a kubeconfig. One that another user could
// change is checked and then read from memory, where it stays what was checked: it could
// name programs for root to run, or files for root to send away.
func ForRoot(path string) (string, error) {
	owner, _, err := datadir.Owner(path)
	if err != nil || owner == 0 {
		return path, err
	}
	content, info, err := datadir.Read(path)
	if err == nil && datadir.OwnerOf(info) != owner {
		err = fmt.Errorf("%s is another user's than just before", path)
	}
	if err != nil {
		return "", err
	}
	plain, err := parseInline(path, content)
	if err != nil {
		return "", fmt.Errorf("%w: choose it by KUBECONFIG if root may use that", err)
	}
	if content, err = clientcmd.Write(*plain); err != nil {
		return "", err
	}
	return keepInMemory(content)
}

// parseInline returns a kubeconfig that names no program, file or proxy, and else an error.
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

// copyInline returns the fields of a kubeconfig that name no program, file or proxy, and an
// error if it has others.
func copyInline(config *clientcmdapi.Config) (*clientcmdapi.Config, error) {
	plain := clientcmdapi.NewConfig()
	plain.CurrentContext = config.CurrentContext
	for name, c := range config.Clusters {
		own := &clientcmdapi.Cluster{
			Server: c.Server, TLSServerName: c.TLSServerName, InsecureSkipTLSVerify: c.InsecureSkipTLSVerify,
			CertificateAuthorityData: c.CertificateAuthorityData, DisableCompression: c.DisableCompression,
			Extensions: c.Extensions,
		}
		if !reflect.DeepEqual(own, c) {
			return nil, fmt.Errorf("its cluster %q names a file or a proxy", name)
		}
		own.Extensions, plain.Clusters[name] = nil, own
	}
	for name, u := range config.AuthInfos {
		own := &clientcmdapi.AuthInfo{
			ClientCertificateData: u.ClientCertificateData, ClientKeyData: u.ClientKeyData, Token: u.Token,
			Username: u.Username, Password: u.Password, Extensions: u.Extensions,
			Impersonate: u.Impersonate, ImpersonateUID: u.ImpersonateUID, ImpersonateGroups: u.ImpersonateGroups, ImpersonateUserExtra: u.ImpersonateUserExtra,
		}
		if !reflect.DeepEqual(own, u) {
			return nil, fmt.Errorf("its user %q names a program, a plugin or a file to log in with", name)
		}
		own.Extensions, plain.AuthInfos[name] = nil, own
	}
	for name, c := range config.Contexts {
		plain.Contexts[name] = &clientcmdapi.Context{Cluster: c.Cluster, AuthInfo: c.AuthInfo, Namespace: c.Namespace}
	}
	return plain, nil
}

// keepInMemory returns the path of a file that needs no removal, and that plugins inherit. A
// change of it fails.
func keepInMemory(content []byte) (string, error) {
	fd, err := unix.MemfdCreate("kubeconfig", unix.MFD_ALLOW_SEALING)
	if err != nil {
		return "", fmt.Errorf("create a file in memory: %w", err)
	}
	for rest := content; len(rest) > 0; {
		n, err := unix.Write(fd, rest)
		if err != nil {
			return "", fmt.Errorf("write a file in memory: %w", err)
		}
		rest = rest[n:]
	}
	const sealed = unix.F_SEAL_WRITE | unix.F_SEAL_GROW | unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sealed); err != nil {
		return "", fmt.Errorf("protect a file in memory: %w", err)
	}
	return fmt.Sprintf("/proc/self/fd/%d", fd), nil
}
