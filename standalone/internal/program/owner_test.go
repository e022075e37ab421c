// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"cloudnative.tw/drover/standalone/internal/datadir"
	"cloudnative.tw/drover/standalone/internal/runstate"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// commandEnv has the command line that the test program runs instead of its tests.
const commandEnv = "DROVER_TEST_COMMAND"

// TestRunCommand runs a command in the process that newCommand starts: a process
// that has become another user stays so.
func TestRunCommand(t *testing.T) {
	line := os.Getenv(commandEnv)
	if line == "" {
		t.Skip("newCommand runs this")
	}
	defer func() { fmt.Println("user:", os.Geteuid()) }()
	if args, ok := strings.CutPrefix(line, "kubectl "); ok {
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
	makeRecorder(t, program, "id -u >>"+ran+"\nexit 1", ran)
	plain := fmt.Sprintf("user: %d\n", user.Uid)
	for line, text := range map[string]string{
		"kubectl get --raw=/version": `user "u" names a program`, "vm list": `user "u" names a program`,
		"purge --yes --data-dir=" + string(dir): plain,
	} {
		assert.Contains(t, fmt.Sprintf("%s does not print %q:\n", line, text), runCommand(t, dir, line), text)
	}
	users, err := os.ReadFile(ran)
	assert.True(t, err == nil && len(users) == 0, "the program was run by users %q, %v", users, err)
}

// TestRootReadsItsFiles checks that root may use files of root with the Drover of another user,
// such as the user of the systemd unit.
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
	assert.True(t, strings.Contains(out, `{"was": "created"}`) && strings.Contains(out, "user: 0\n"), "it printed\n%s", out)
}

// makeRecorder makes a program that everybody may run, and the file in which it records that.
func makeRecorder(t *testing.T, path, script, record string) {
	t.Helper()
	assert.NoError(t, errors.Join(os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755), os.Chmod(path, 0o755),
		os.WriteFile(record, nil, 0o666), os.Chmod(record, 0o666)))
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

// runCommand runs a command in a separate process, and returns its output.
func runCommand(t *testing.T, dir datadir.Layout, line string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestRunCommand$")
	cmd.Env = append(os.Environ(), commandEnv+"="+line, "DROVER_DATA_DIR="+string(dir), "KUBECONFIG=")
	out, _ := cmd.CombinedOutput()
	return string(out)
}

// othersDir is a data dir of a plain user, whose QEMU records the users that run it.
type othersDir struct {
	datadir.Layout
	user *syscall.Credential
	ran  string
}

func makeOthersDir(t *testing.T) othersDir {
	t.Helper()
	base := framework.PublicDir(t)
	d := othersDir{Layout: datadir.Layout(filepath.Join(base, "data")), user: framework.PlainUser(t), ran: filepath.Join(base, "ran")}
	program := filepath.Join(base, "qemu")
	makeRecorder(t, program, "id -u >>"+d.ran+"\necho QEMU emulator version 9.0.0", d.ran)
	opened, err := datadir.Open(string(d.Layout))
	assert.NoError(t, err)
	state, err := json.Marshal(runstate.State{Args: []string{"--vm-driver=qemu", "--qemu-binary=" + program}})
	assert.NoError(t, errors.Join(err, opened.SetRunState(state), opened.SetClusterID("c"), opened.Close(),
		os.WriteFile(opened.Engines(), []byte("[]"), 0o600), framework.ChownAll(string(d.Layout), d.user)))
	return d
}

// run runs a command as root and returns what it prints, and which users have run the QEMU.
func (d othersDir) run(t *testing.T, line string) (out, users string) {
	t.Helper()
	out = runCommand(t, d.Layout, line)
	ran, err := os.ReadFile(d.ran)
	assert.NoError(t, errors.Join(err, os.Truncate(d.ran, 0)))
	return out, string(ran)
}

// TestOthersDataDir checks that no command runs as root what the owner of a data dir chose.
func TestOthersDataDir(t *testing.T) {
	d := makeOthersDir(t)
	plain := strconv.Itoa(int(d.user.Uid))
	for _, line := range []string{"doctor", "status", "retained list", "image list"} {
		out, users := d.run(t, line)
		assert.Contains(t, line+" did not become user "+plain+":\n", out, "user: "+plain)
		for user := range strings.FieldsSeq(users) {
			assert.Equal(t, line+" ran the QEMU as user", user, plain)
		}
		assert.True(t, line != "doctor" || users != "", "doctor did not run the QEMU:\n%s", out)
	}
}

// TestBrokenDataDir checks that nothing of another user is run for a data dir of root where
// that user could write, or where there is none.
func TestBrokenDataDir(t *testing.T) {
	d := makeOthersDir(t)
	wantRefused := func(what string) {
		t.Helper()
		out, users := d.run(t, "doctor")
		assert.True(t, users == "" && strings.Contains(out, "another user owns it, or may write to it"), "%s: run by %q:\n%s", what, users, out)
	}
	assert.NoError(t, os.Chown(string(d.Layout), 0, 0))
	wantRefused("a file of another user")
	assert.NoError(t, errors.Join(os.Chown(d.RunState(), 0, 0), os.Chmod(d.RunState(), 0o666)))
	wantRefused("a file that others may write to")
	assert.NoError(t, os.RemoveAll(string(d.Layout)))
	out, users := d.run(t, "doctor")
	assert.True(t, users == "" && strings.Contains(out, "user: 0"), "no data dir: run by %q:\n%s", users, out)
}

// TestPurgeOfService checks that purge succeeds, also when it is repeated, where the folder
// above the data dir is root's.
func TestPurgeOfService(t *testing.T) {
	base, user := framework.PublicDir(t), framework.PlainUser(t)
	dir := datadir.Layout(filepath.Join(base, "data"))
	makeDataDir(t, dir, "", user)
	for _, text := range []string{"Data removed.\n" + string(dir) + " stays, empty", "is empty: there is nothing to remove"} {
		out := runCommand(t, dir, "purge --yes --data")
		assert.True(t, strings.Contains(out, text) && strings.Contains(out, "result: <nil>"), "it does not print %q:\n%s", text, out)
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
		assert.Contains(t, line+" printed\n", runCommand(t, dir, line), "sudo usermod --append --groups docker ")
	}
}

// changingCommands are commands that root runs on a data dir, which it must not be led away from.
var changingCommands = []string{"purge --yes --data", "machines shutdown", "image prune", "status", "retained list", "doctor"}

// TestLedAstray checks that root acts on no data dir to which another user's link leads, such as
// the data dir of an installation of root.
func TestLedAstray(t *testing.T) {
	base, user := framework.PublicDir(t), framework.PlainUser(t)
	home, own := filepath.Join(base, "home"), datadir.Layout(filepath.Join(t.TempDir(), "own"))
	opened, err := datadir.Open(string(own))
	assert.NoError(t, errors.Join(err, opened.SetClusterID("c"), opened.Close(), os.WriteFile(own.Engines(), []byte("[]"), 0o600), os.Mkdir(home, 0o755)))
	for name, target := range map[string]string{"data": string(own), "above": filepath.Dir(string(own))} {
		assert.NoError(t, os.Symlink(target, filepath.Join(home, name)))
	}
	assert.NoError(t, framework.ChownAll(home, user))
	for _, path := range []string{filepath.Join(home, "data"), filepath.Join(home, "above", "own")} {
		for _, line := range changingCommands {
			assert.Contains(t, line+" of "+path+" printed\n", runCommand(t, datadir.Layout(path), line), "is a symbolic link that others than root can change")
		}
	}
	for _, path := range []string{own.Etcd(), own.Run(), own.Engines()} {
		assert.NoError(t, assert.ErrorOf(os.Stat(path)))
	}
}

// TestOthersPrograms checks that a check by root runs no program that the owner of the data dir
// can change, and says so.
func TestOthersPrograms(t *testing.T) {
	d := makeOthersDir(t)
	program := filepath.Join(filepath.Dir(string(d.Layout)), "qemu")
	assert.NoError(t, os.Chown(program, int(d.user.Uid), -1))
	out, users := d.run(t, "doctor")
	if want := fmt.Sprintf("%s belongs to user %d", program, d.user.Uid); users != "" || !strings.Contains(strings.Join(strings.Fields(out), " "), "root does not run "+program+": "+want) {
		t.Errorf("it was run by %q, and the doctor does not say %q:\n%s", users, want, out)
	}
}

// TestPipesAndDevices checks that files of a data dir neither delay root's commands nor fill
// their memory.
func TestPipesAndDevices(t *testing.T) {
	user := framework.PlainUser(t)
	for name, place := range map[string]func(path string) error{
		"pipe":   func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"device": func(path string) error { return os.Symlink("/dev/zero", path) },
	} {
		for _, file := range []string{"cluster-id", "engines.json", "lock"} {
			dir := datadir.Layout(filepath.Join(framework.PublicDir(t), "data"))
			makeDataDir(t, dir, "", user)
			for path, content := range map[string]string{dir.Engines(): "[]", filepath.Join(string(dir), "cluster-id"): "c"} {
				assert.NoError(t, os.WriteFile(path, []byte(content), 0o600))
			}
			path := filepath.Join(string(dir), file)
			assert.NoError(t, errors.Join(os.RemoveAll(path), place(path), framework.ChownAll(string(dir), user)))
			out := runCommand(t, dir, "purge --yes --data")
			assert.True(t, strings.Contains(out, path) && strings.Contains(out, "not a regular file"), "%s as %s: it printed\n%s", name, file, out)
		}
	}
}
