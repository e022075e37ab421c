// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeconfig

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/standalone/internal/pki"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

const server = "https://127.0.0.1:6443"

func newStore(t *testing.T) *pki.Store {
	t.Helper()
	store := &pki.Store{
		Dir: t.TempDir(), Clock: clock.RealClock{},
		Hosts: func() []string { return []string{"127.0.0.1"} },
	}
	_, err := store.Ensure()
	assert.NoError(t, err)
	return store
}

// loadConfig reads a kubeconfig as every client does, and checks its certificates.
func loadConfig(t *testing.T, path string) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", path)
	assert.NoError(t, err)
	assert.ReportError(t, assert.ErrorOf(rest.TransportFor(config)))
	assert.Equal(t, "server", config.Host, server)
	info, err := os.Stat(path)
	assert.NoError(t, err)
	assert.True(t, info.Mode().Perm() == 0o600, "mode is %v", info.Mode())
	return config
}

func TestWriteForPeopleCanBeCopied(t *testing.T) {
	store, path := newStore(t), filepath.Join(t.TempDir(), "kubeconfig")
	assert.NoError(t, WriteForPeople(path, server, store.CABundle(), store.Admin()))
	assert.NoError(t, os.RemoveAll(store.Dir))
	config := loadConfig(t, path)
	assert.True(t, len(config.CertData) != 0 && len(config.CAData) != 0, "certificates are not inside")
}

func TestWriteForProgramsNamesFiles(t *testing.T) {
	store, path := newStore(t), filepath.Join(t.TempDir(), "kubeconfig")
	assert.NoError(t, WriteForPrograms(path, server, store.CABundle(), store.ControllerManager()))
	config := loadConfig(t, path)
	assert.True(t, config.CertFile == store.ControllerManager() && config.CAFile == store.CABundle(), "names %s and %s", config.CertFile, config.CAFile)
}

// TestRead checks that the file is read, and that one that names a program or a file is refused.
func TestRead(t *testing.T) {
	store, path := newStore(t), filepath.Join(t.TempDir(), "kubeconfig")
	assert.ErrorIs(t, "of no file", assert.ErrorOf(Read(path)), fs.ErrNotExist)
	assert.NoError(t, WriteForPeople(path, server, store.CABundle(), store.Admin()))
	config, err := Read(path)
	assert.True(t, err == nil && config.Host == server && len(config.CertData) != 0 && len(config.CAData) != 0, "got %+v, %v", config, err)
	for name, user := range map[string]*clientcmdapi.AuthInfo{
		"exec":          {Exec: &clientcmdapi.ExecConfig{Command: "/bin/false", APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: clientcmdapi.NeverExecInteractiveMode}},
		"auth-provider": {AuthProvider: &clientcmdapi.AuthProviderConfig{Name: "oidc"}},
		"a file":        {TokenFile: "/dev/zero"}, //nolint:gosec // no secret
	} {
		assert.NoError(t, writeConfig(path, &clientcmdapi.Cluster{Server: server}, user))
		assert.ErrorSays(t, name, assert.ErrorOf(Read(path)), path+`: its user "drover" names a program`)
	}
	assert.NoError(t, os.WriteFile(path, nil, 0o600))
	config, err = Read(path)
	assert.True(t, err != nil, "of an empty file: %+v", config)
}

// TestForRoot checks that root reads the kubeconfig of another user only if that names no
// program, file or proxy.
func TestForRoot(t *testing.T) {
	t.Parallel()
	user := framework.PlainUser(t)
	for name, c := range map[string]struct{ cluster, user, refused string }{
		"inline":       {`"certificate-authority-data": "YQ=="`, `"client-certificate-data": "YQ==", "client-key-data": "Yg==", "act-as": "x"`, ""},
		"token":        {`"tls-server-name": "s"`, `"token": "t"`, ""},
		"CA's file":    {`"certificate-authority": "/f"`, "", `cluster "c" names a file or a proxy`},
		"proxy":        {`"proxy-url": "http://p"`, "", `cluster "c" names a file or a proxy`},
		"exec":         {"", `"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/p", "interactiveMode": "Never"}`, `user "u" names a program`},
		"plugin":       {"", `"auth-provider": {"name": "p"}`, `user "u" names a program`},
		"token's file": {"", `"tokenFile": "/f"`, `user "u" names a program`},
		"certificate":  {"", `"client-certificate": "/f", "client-key-data": "Yg=="`, `user "u" names a program`},
		"key":          {"", `"client-certificate-data": "YQ==", "client-key": "/f"`, `user "u" names a program`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "kubeconfig")
			content := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "x", "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "n"}}],
"clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"%s}}], "users": [{"name": "u", "user": {%s}}]}`, strings.TrimSuffix(", "+c.cluster, ", "), c.user)
			assert.NoError(t, os.WriteFile(path, []byte(content), 0o600))
			if got, err := ForRoot(path); err != nil || got != path {
				t.Errorf("the kubeconfig of root: %q, %v", got, err)
			}
			assert.NoError(t, os.Lchown(path, int(user.Uid), int(user.Gid)))
			got, err := ForRoot(path)
			if c.refused != "" {
				assert.ErrorSays(t, name, err, c.refused)
				return
			}
			assert.NoError(t, err)
			assertSame(t, path, got)
		})
	}
}

// assertSame checks that a copy says what the original says, even after a change of that.
func assertSame(t *testing.T, original, copied string) {
	t.Helper()
	want, err := clientcmd.BuildConfigFromFlags("", original)
	assert.NoError(t, errors.Join(err, os.Truncate(original, 0)))
	got, err := clientcmd.BuildConfigFromFlags("", copied)
	assert.True(t, err == nil && got.String() == want.String(), "got %v, %v; want %v", got, err, want)
	assert.True(t, os.WriteFile(copied, []byte("{}"), 0o600) != nil, "the copy can be changed")
}

// TestForRootRefusesLinks checks that another user leads root to no other file, and to none
// that blocks.
func TestForRootRefusesLinks(t *testing.T) {
	t.Parallel()
	user, dir := framework.PlainUser(t), t.TempDir()
	target, link, pipe := filepath.Join(t.TempDir(), "target"), filepath.Join(dir, "link"), filepath.Join(dir, "pipe")
	assert.NoError(t, errors.Join(os.WriteFile(target, nil, 0o600), os.Symlink(target, link), unix.Mkfifo(pipe, 0o600), os.Lchown(target, int(user.Uid), -1), framework.ChownAll(dir, user)))
	folder, own := filepath.Join(dir, "folder"), filepath.Join(t.TempDir(), "kubeconfig")
	assert.NoError(t, errors.Join(os.WriteFile(own, []byte("{}"), 0o600), os.Symlink(filepath.Dir(own), folder), os.Lchown(folder, int(user.Uid), -1)))
	for _, path := range []string{link, pipe, filepath.Join(folder, "kubeconfig")} {
		got, err := ForRoot(path)
		assert.True(t, err != nil, "%s: got %q", path, got)
	}
}
