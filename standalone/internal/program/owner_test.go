// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"cloudnative.tw/drover/standalone/internal/datadir"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// commandEnv has the command line that the test program runs instead of its tests.
const commandEnv = "DROVER_TEST_COMMAND"

// TestRunCommand runs a command in the process that runCommand starts: a process
// that has become another user stays so.
func TestRunCommand(t *testing.T) {
	line := os.Getenv(commandEnv)
	if line == "" {
		t.Skip("runCommand runs this")
	}
	defer func() { fmt.Println("user:", os.Geteuid()) }()
	if args, is := strings.CutPrefix(line, "kubectl "); is {
		os.Args = append([]string{"drover", "kubectl"}, strings.Fields(args)...)
		fmt.Println("user:", os.Geteuid()) // the next lines may end the process
		useDataDirKubeconfig(os.Args[2:])
		runKubectl(os.Args[2:])
		return
	}
	root := Program{}.newRootCommand()
	root.AddCommand(newVMCommand(newVMOptions()))
	root.SetArgs(strings.Fields(line))
	fmt.Println("result:", root.ExecuteContext(t.Context()))
}

// TestOthersKubeconfig checks that root runs no program that the kubeconfig of another user's
// data dir names, and purges such a data dir as that user.
func TestOthersKubeconfig(t *testing.T) {
	base, user := framework.PublicDir(t), framework.PlainUser(t)
	dir, ran, program := datadir.Layout(filepath.Join(base, "data")), filepath.Join(base, "ran"), filepath.Join(base, "login")
	config := fmt.Sprintf(kubeconfigFormat, "https://127.0.0.1:1", fmt.Sprintf(`{"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": %q, "interactiveMode": "Never"}}`, program))
	makeDataDir(t, dir, config, user)
	if err := errors.Join(os.WriteFile(program, []byte("#!/bin/sh\nid -u >>"+ran+"\nexit 1\n"), 0o755), os.Chmod(program, 0o755),
		os.WriteFile(ran, nil, 0o666), os.Chmod(ran, 0o666)); err != nil {
		t.Fatal(err)
	}
	plain := fmt.Sprintf("user: %d\n", user.Uid)
	for line, says := range map[string]string{
		"kubectl get --raw=/version": `user "u" names a program`, "vm list": `user "u" names a program`,
		"purge --yes --data-dir=" + string(dir): plain,
	} {
		if out := runCommand(t, dir, line); !strings.Contains(out, says) {
			t.Errorf("%s does not print %q:\n%s", line, says, out)
		}
	}
	if users, err := os.ReadFile(ran); err != nil || len(users) > 0 {
		t.Errorf("the program was run by users %q, %v", users, err)
	}
}

// TestRootReadsItsFiles checks that root may use files of its own with the Drover of another
// user, such as that of the systemd unit.
func TestRootReadsItsFiles(t *testing.T) {
	base, user, manifest := framework.PublicDir(t), framework.PlainUser(t), filepath.Join(t.TempDir(), "vm.yaml")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodPost && r.URL.Path == "/some/path" {
			_, _ = io.WriteString(w, `{"was": "created"}`)
		}
	}))
	defer server.Close()
	dir := datadir.Layout(filepath.Join(base, "data"))
	makeDataDir(t, dir, fmt.Sprintf(kubeconfigFormat, server.URL, "{}"), user)
	assert.NoError(t, os.WriteFile(manifest, []byte("{}"), 0o600))
	out := runCommand(t, dir, "kubectl create --raw=/some/path -f "+manifest)
	if !strings.Contains(out, `{"was": "created"}`) || !strings.Contains(out, "user: 0\n") {
		t.Errorf("it printed\n%s", out)
	}
}

// kubeconfigFormat is a kubeconfig without the server's address and the user.
const kubeconfigFormat = `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
"clusters": [{"name": "c", "cluster": {"server": %q}}], "users": [{"name": "u", "user": %s}]}`

// makeDataDir makes a data dir of a user.
func makeDataDir(t *testing.T, dir datadir.Layout, config string, user *syscall.Credential) {
	t.Helper()
	opened, err := datadir.Open(string(dir))
	assert.NoError(t, err)
	assert.NoError(t, errors.Join(opened.Close(), os.WriteFile(dir.Kubeconfig(), []byte(config), 0o600), framework.ChownAll(string(dir), user)))
}

// runCommand runs a command in a process of its own, and returns its output.
func runCommand(t *testing.T, dir datadir.Layout, line string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestRunCommand$")
	cmd.Env = append(os.Environ(), commandEnv+"="+line, "DROVER_DATA_DIR="+string(dir), "KUBECONFIG=")
	out, _ := cmd.CombinedOutput()
	return string(out)
}

// TestPurgeOfService checks that purge succeeds, also when it is repeated, where the folder
// above the data dir is root's.
func TestPurgeOfService(t *testing.T) {
	base, user := framework.PublicDir(t), framework.PlainUser(t)
	dir := datadir.Layout(filepath.Join(base, "data"))
	makeDataDir(t, dir, "", user)
	for _, says := range []string{"Data removed.\n" + string(dir) + " stays, empty", "is empty: there is nothing to remove"} {
		out := runCommand(t, dir, "purge --yes --data")
		if !strings.Contains(out, says) || !strings.Contains(out, "result: <nil>") {
			t.Errorf("it does not print %q:\n%s", says, out)
		}
	}
}

// TestDockerOfService checks that commands which act as the owner of the data dir say how that
// gets the right to use Docker.
func TestDockerOfService(t *testing.T) {
	base, user := framework.PublicDir(t), framework.PlainUser(t)
	dir, socket := datadir.Layout(filepath.Join(base, "data")), filepath.Join(base, "s")
	listener, err := net.Listen("unix", socket) //nolint:noctx // no wait
	assert.NoError(t, err)
	defer func() { _ = listener.Close() }()
	makeDataDir(t, dir, "", user)
	for path, content := range map[string]string{dir.Engines(): `[{"driver": "docker", "engineID": "D"}]`, filepath.Join(string(dir), "cluster-id"): "c"} {
		assert.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	}
	assert.NoError(t, errors.Join(os.Chmod(socket, 0o600), framework.ChownAll(string(dir), user)))
	t.Setenv("DOCKER_HOST", "unix://"+socket)
	for _, line := range []string{"purge --yes", "retained list"} {
		if out := runCommand(t, dir, line); !strings.Contains(out, "sudo usermod --append --groups docker ") {
			t.Errorf("%s printed\n%s", line, out)
		}
	}
}
