// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeconfig

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/clientcmd"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

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
				t.Errorf("root's own: %q, %v", got, err)
			}
			assert.NoError(t, os.Lchown(path, int(user.Uid), int(user.Gid)))
			got, err := ForRoot(path)
			if c.refused != "" {
				if err == nil || !strings.Contains(err.Error(), c.refused) {
					t.Errorf("got %q, %v; want %q", got, err, c.refused)
				}
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
	if err != nil || got.String() != want.String() {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	if err := os.WriteFile(copied, []byte("{}"), 0o600); err == nil {
		t.Error("the copy can be changed")
	}
}

// TestForRootRefusesLinks checks that another user leads root to no other file, and to none
// that blocks.
func TestForRootRefusesLinks(t *testing.T) {
	t.Parallel()
	user, dir := framework.PlainUser(t), t.TempDir()
	target, link, pipe := filepath.Join(t.TempDir(), "target"), filepath.Join(dir, "link"), filepath.Join(dir, "pipe")
	if err := errors.Join(os.WriteFile(target, nil, 0o600), os.Symlink(target, link), unix.Mkfifo(pipe, 0o600), os.Lchown(target, int(user.Uid), -1), framework.ChownAll(dir, user)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, pipe} {
		if got, err := ForRoot(path); err == nil {
			t.Errorf("%s: got %q", path, got)
		}
	}
}
