// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeconfig

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/standalone/internal/pki"
	"cloudnative.tw/drover/test/assert"
)

const url = "https://127.0.0.1:6443"

func newStore(t *testing.T) *pki.Store {
	t.Helper()
	store := &pki.Store{
		Dir: t.TempDir(), Clock: clock.RealClock{},
		Hosts: pki.Hosts(net.IPv4(127, 0, 0, 1), net.IPv4(10, 0, 0, 1), "", nil),
	}
	if _, err := store.Ensure(); err != nil {
		t.Fatal(err)
	}
	return store
}

// loadConfig reads a kubeconfig as every client does, and checks its certificates.
func loadConfig(t *testing.T, path string) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", path)
	assert.NoError(t, err)
	if _, err := rest.TransportFor(config); err != nil {
		t.Error(err)
	}
	if config.Host != url {
		t.Errorf("server is %s", config.Host)
	}
	info, err := os.Stat(path)
	assert.NoError(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode is %v", info.Mode())
	}
	return config
}

func TestWriteForPeopleCanBeCopied(t *testing.T) {
	store, path := newStore(t), filepath.Join(t.TempDir(), "kubeconfig")
	assert.NoError(t, WriteForPeople(path, url, store.CABundle(), store.Admin()))
	assert.NoError(t, os.RemoveAll(store.Dir))
	if config := loadConfig(t, path); len(config.CertData) == 0 || len(config.CAData) == 0 {
		t.Error("certificates are not inside")
	}
}

func TestWriteForProgramsNamesFiles(t *testing.T) {
	store, path := newStore(t), filepath.Join(t.TempDir(), "kubeconfig")
	assert.NoError(t, WriteForPrograms(path, url, store.CABundle(), store.ControllerManager()))
	config := loadConfig(t, path)
	if config.CertFile != store.ControllerManager() || config.CAFile != store.CABundle() {
		t.Errorf("names %s and %s", config.CertFile, config.CAFile)
	}
}

// TestRead checks that the file is read, and that no program is run for one that names some.
func TestRead(t *testing.T) {
	store, path := newStore(t), filepath.Join(t.TempDir(), "kubeconfig")
	if _, err := Read(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of no file: %v", err)
	}
	assert.NoError(t, WriteForPeople(path, url, store.CABundle(), store.Admin()))
	if config, err := Read(path); err != nil || config.Host != url || len(config.CertData) == 0 || len(config.CAData) == 0 {
		t.Errorf("got %+v, %v", config, err)
	}
	for says, user := range map[string]*clientcmdapi.AuthInfo{
		"has exec":          {Exec: &clientcmdapi.ExecConfig{Command: "/bin/false", APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: clientcmdapi.NeverExecInteractiveMode}},
		"has auth-provider": {AuthProvider: &clientcmdapi.AuthProviderConfig{Name: "oidc"}},
	} {
		assert.NoError(t, writeConfig(path, &clientcmdapi.Cluster{Server: url}, user))
		if config, err := Read(path); err == nil || !strings.Contains(err.Error(), path+`: user "drover" `+says) {
			t.Errorf("%s: got %+v, %v", says, config, err)
		}
	}
	assert.NoError(t, os.WriteFile(path, nil, 0o600))
	if config, err := Read(path); err == nil {
		t.Errorf("of an empty file: %+v", config)
	}
}
