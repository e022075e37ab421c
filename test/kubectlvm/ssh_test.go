// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlvm

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
	"cloudnative.tw/drover/test/tier"
)

// sshUser runs kubectl-vm, which ssh runs again as its proxy, beside `drover up` with the docker
// driver.
type sshUser struct {
	t                   *testing.T
	cluster             *testenv.Environment
	program, dir        string
	environment         []string
	user                string // in the guest
	copySize            int
	identity, publicKey string
}

func newSSHUser(t *testing.T, copySize int, flags ...string) *sshUser {
	t.Helper()
	env, err := testenv.NewWith(framework.ClusterOptions{WithController: true, Args: flags})
	assert.NoError(t, err)
	testenv.KillMachinesAtEnd(t, env.DataDir)
	t.Cleanup(func() { assert.NoError(t, env.Close()) })
	dir := framework.ShortTempDir(t)
	u := &sshUser{t: t, cluster: env, user: "ann", copySize: copySize, dir: dir, identity: filepath.Join(dir, "key")}
	u.program, _ = pluginPath(t)
	u.environment = append(os.Environ(), "KUBECONFIG="+env.Kubeconfig, "HOME="+dir, "XDG_CONFIG_HOME="+filepath.Join(dir, "it's a %d folder"), "SSH_AUTH_SOCK=")
	out, err := exec.CommandContext(t.Context(), "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", u.identity).CombinedOutput()
	assert.Require(t, err == nil, "ssh-keygen: %v: %s", err, out)
	key, err := os.ReadFile(u.identity + ".pub")
	assert.NoError(t, err)
	u.publicKey = string(key)
	return u
}

func (u *sshUser) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(context.WithoutCancel(u.t.Context()), u.program, args...) // cleanups also run verbs
	cmd.Env, cmd.Dir = u.environment, u.dir
	return cmd
}

func (u *sshUser) run(stdin string, args ...string) result {
	u.t.Helper()
	var out, errs bytes.Buffer
	cmd := u.command(args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		u.t.Fatal(err)
	}
	return result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// expectOutput runs a verb, and checks its exit code, its output and a part of its errors.
func (u *sshUser) expectOutput(code int, out, errs string, args ...string) {
	u.t.Helper()
	if r := u.run("", args...); r.code != code || r.out != out || !strings.Contains(r.errs, errs) {
		u.t.Errorf("kubectl vm %q ended with %d: %q, %q, want %d, %q, %q", args, r.code, r.out, r.errs, code, out, errs)
	}
}

func (u *sshUser) ssh(args ...string) []string {
	return append([]string{"ssh", "--identity", u.identity}, args...)
}

// createVM creates a VM to which the user may log in as ann.
func (u *sshUser) createVM(name, image string) {
	u.t.Helper()
	if r := u.run("", "create", name, "--image="+image, "--memory=128M", "--probe=22", "--wait"); r.code != 0 {
		u.t.Fatalf("create ended with %d: %s", r.code, r.errs)
	}
	if r := u.run(u.publicKey, "exec", "-i", name, "--", "sh", "-c", "cat >>/home/ann/.ssh/authorized_keys"); r.code != 0 {
		u.t.Fatalf("storing the key ended with %d: %s", r.code, r.errs)
	}
}

// TestSSH logs in to real OpenSSH servers, and copies files.
func TestSSH(t *testing.T) {
	t.Parallel()
	copySize, races := 2<<20, 1
	if tier.IsFull() {
		copySize, races = 20<<20, 5
	}
	image := framework.SSHGuest(t)
	u := newSSHUser(t, copySize, "--vm-driver=docker")
	u.createVM("web", image)
	u.createVM("db", image)
	u.expectOutput(0, "web\n", "Permanently added", u.ssh("ann@web", "--", "hostname")...)
	u.expectOutput(0, "db\n", "Permanently added", u.ssh("db", "-l", "ann", "--", "hostname")...)
	u.expectOutput(7, "ann\n", "", u.ssh("ann@web", "--", "whoami; exit 7")...)
	u.expectOutput(255, "", "nobody@web.default.vm: Permission denied (publickey)", u.ssh("nobody@web", "--", "id")...)
	u.expectOutput(255, "", "Permission denied (publickey)", "ssh", "ann@web", "--ssh-option=IdentityFile=none", "--ssh-option=IdentitiesOnly=yes", "--", "id")
	u.expectOutput(1, "", `virtualmachines "none" not found in namespace "default"`, u.ssh("ann@none", "--", "id")...)
	for range races { // ssh must not end its proxy before the proxy has printed the reason
		u.expectOutput(255, "", "error: port 23 of the server takes no connection", u.ssh("ann@web", "--port=23", "--", "id")...)
	}
	t.Run("interactive", func(t *testing.T) { u.testInteractive(t) })
	t.Run("interrupted", func(t *testing.T) { u.testInterrupted(t) })
	t.Run("copy", func(t *testing.T) { u.testCopy(t) })
	u.testExecOfNoProgram()

	u.expectOutput(0, "virtualmachine.cloudnative.tw/web deleted\n", "", "delete", "web", "--yes")
	u.createVM("web", image)
	u.expectOutput(0, "web\n", "Permanently added", u.ssh("ann@web", "--", "hostname")...)
	u.expectOutput(0, "virtualmachine.cloudnative.tw/web stopped\n", "", "stop", "web", "--wait")
	for _, args := range [][]string{u.ssh("ann@web"), {"cp", "key", "ann@web:"}, {"exec", "web", "--", "id"}, {"console", "web"}} {
		u.expectOutput(1, "", "web is stopped, to start it: kubectl vm start web\n", args...)
	}
	u.expectOutput(0, "virtualmachine.cloudnative.tw/db paused\n", "", "pause", "db", "--wait")
	for _, args := range [][]string{u.ssh("ann@db"), {"exec", "db", "--", "id"}} {
		u.expectOutput(1, "", "db is paused, to resume it: kubectl vm resume db\n", args...)
	}
}

// testExecOfNoProgram checks that exec of a missing program has the exit codes of shells.
func (u *sshUser) testExecOfNoProgram() {
	u.t.Helper()
	u.expectOutput(127, "", "error: ", "exec", "web", "--", "no-such-program")
	u.expectOutput(126, "", "error: ", "exec", "web", "--", "/etc")
	u.expectOutput(9, "", "", "exec", "web", "--", "sh", "-c", "exit 9")
}

// TestSSHToMachine logs in to the Debian of hack/debian-guest.sh.
func TestSSHToMachine(t *testing.T) {
	tier.Full(t, "it emulates a whole Debian for minutes; the gate keeps TestSSH")
	guest := framework.DebianGuest(t)
	u := newSSHUser(t, 2<<20, "--vm-driver=qemu", "--qemu-image-dirs="+guest)
	u.user = "debian"
	r := u.run("", "create", "web", "--image="+filepath.Join(guest, "debian.img"), "--disk=3G", "--cpu=2", "--ssh-key="+u.identity+".pub",
		"--port=22", "--probe=22", "--dry-run=client", "-o=json")
	vm := &api.VirtualMachine{}
	if err := json.Unmarshal([]byte(r.out), vm); err != nil {
		t.Fatalf("%v: %s", err, r.errs)
	}
	vm.Spec.Image.Kernel = &api.Kernel{Source: filepath.Join(guest, "vmlinuz"), Initrd: filepath.Join(guest, "initrd.img"), Cmdline: framework.DebianCmdline}
	vm, err := u.cluster.VMsIn("default").Create(t.Context(), vm, metav1.CreateOptions{})
	assert.NoError(t, err)
	t.Cleanup(func() { u.expectOutput(0, "virtualmachine.cloudnative.tw/web deleted\n", "", "delete", "web", "--yes") })
	u.cluster.WaitForVM(t, vm, framework.IsActive)
	u.expectOutput(0, "", "", u.ssh("debian@web", "--", "cloud-init status --wait >/dev/null || :")...)
	u.expectOutput(7, "debian\n", "", u.ssh("debian@web", "--", "whoami; exit 7")...)
	t.Run("interactive", func(t *testing.T) { u.testInteractive(t) })
	t.Run("copy", func(t *testing.T) { u.testCopy(t) })
	u.testExecOfNoProgram()
}

// TestCopyToMachine copies files to and from a machine whose image has one program and nothing else.
func TestCopyToMachine(t *testing.T) {
	tier.Full(t, "it boots a machine beside a separate Drover; the gate copies in the boots of package boot and of driver qemu")
	program := filepath.Join(t.TempDir(), "program")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../../internal/guest/boot/testdata/program")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	code, err := os.ReadFile(program)
	assert.NoError(t, err)
	host := framework.NewRegistry(t, nil)
	image, err := framework.LayersImage(v1.Config{Entrypoint: []string{"/program", "serve"}, WorkingDir: "/work"}, framework.TarOf(t, "program", code))
	assert.NoError(t, err)
	framework.PushImage(t, host+"/scratch:1", image)
	u := newSSHUser(t, 20<<20, "--vm-driver=qemu", "--image-plain-http-registries="+host, "--image-hosts=127.0.0.0/8", "--qemu-unchecked-images", "--qemu-kernel="+framework.GuestKernel(t))
	r := u.run("", "create", "web", "--image="+host+"/scratch:1", "--memory=128Mi", "--wait")
	assert.Require(t, r.code == 0, "create ended with %d: %s", r.code, r.errs)
	t.Cleanup(func() { u.expectOutput(0, "virtualmachine.cloudnative.tw/web deleted\n", "", "delete", "web", "--yes") })
	content := make([]byte, u.copySize)
	_, _ = rand.Read(content)
	assert.NoError(t, os.MkdirAll(filepath.Join(u.dir, "folder", "a b"), 0o700))
	assert.NoError(t, os.WriteFile(filepath.Join(u.dir, "folder", "a b", "c:d"), content, 0o640))
	assert.NoError(t, os.Symlink("a b/c:d", filepath.Join(u.dir, "folder", "link")))
	u.expectOutput(0, "", "", "cp", "folder", "web:")
	u.expectOutput(0, "", "", "cp", "web:/work/folder", "back")
	got, err := os.ReadFile(filepath.Join(u.dir, "back", "link"))
	assert.True(t, err == nil && bytes.Equal(got, content), "%d bytes of %d came back, %v", len(got), len(content), err)
	u.expectOutput(1, "", "no such file or directory", "cp", "web:/none", ".")
	u.expectOutput(1, "", "no such file or directory", "cp", "none", "web:/work")
	u.expectOutput(1, "", "no such file or directory", "cp", "key", "key.pub", "web:/none")
	u.expectOutput(1, "", "no such file or directory", "cp", "web:/program", "none/")
	u.expectOutput(1, "", "name a file or folder", "cp", "web:/", ".")
	u.expectOutput(1, "", "from a VM, give one path", "cp", "key", "web:/x", ".")
	u.expectOutput(255, "", "error: ", "cp", "root@web:/program", ".") // no ssh server
}

// testInteractive types into a shell on a terminal.
func (u *sshUser) testInteractive(t *testing.T) {
	tty := newTerminal(t, 91, 33)
	cmd := u.command(u.ssh(u.user + "@web")...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty.program, tty.program, tty.program
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	assert.NoError(t, cmd.Start())
	tty.text.waitFor(t, "$ ")
	tty.typeText(t, "stty size; exit 5\n")
	err := cmd.Wait()
	text := tty.close()
	code := cmd.ProcessState.ExitCode()
	assert.True(t, code == 5 && strings.Contains(text, "33 91"), "it ended with %d, %v: %q", code, err, text)
}

// testInterrupted interrupts only kubectl-vm, which has to end ssh.
func (u *sshUser) testInterrupted(t *testing.T) {
	cmd := u.command(u.ssh(u.user+"@web", "--", "echo begun; sleep 1000")...)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		_, err = io.ReadFull(out, make([]byte, len("begun\n")))
	}
	if err == nil {
		err = cmd.Process.Signal(os.Interrupt)
	}
	assert.NoError(t, err)
	rest, err := io.ReadAll(out) // ends with ssh
	_ = cmd.Wait()
	assert.True(t, err == nil && len(rest) == 0 && cmd.ProcessState.ExitCode() == 130, "it ended with %d, %q, %v", cmd.ProcessState.ExitCode(), rest, err)
}

// testCopy copies a file that is larger than all buffers, and a folder, in both directions.
func (u *sshUser) testCopy(t *testing.T) {
	content := make([]byte, u.copySize)
	_, _ = rand.Read(content)
	must := func(err error) {
		t.Helper()
		assert.NoError(t, err)
	}
	must(os.MkdirAll(filepath.Join(u.dir, "folder", "a b"), 0o700))
	must(os.WriteFile(filepath.Join(u.dir, "folder", "a b", "c:d"), content, 0o600))
	cp := []string{"cp", "--identity", u.identity}
	u.expectOutput(0, "", "", append(cp, "-r", "folder", u.user+"@web:/tmp/")...)
	u.expectOutput(0, "", "", append(cp, "-r", u.user+"@web:/tmp/folder", "back")...)
	got, err := os.ReadFile(filepath.Join(u.dir, "back", "a b", "c:d"))
	assert.True(t, err == nil && bytes.Equal(got, content), "%d bytes of %d came back, %v", len(got), len(content), err)
	u.expectOutput(1, "", "not a regular file", append(cp, "folder", u.user+"@web:/tmp/other")...)
	u.expectOutput(1, "", "No such file or directory", append(cp, u.user+"@web:/tmp/none", ".")...)
	u.expectOutput(1, "", "exactly one of the paths has to be in a VM", append(cp, u.user+"@web:/tmp/x", "ann@db:/tmp/x")...)
}

// TestLoginUser checks that ssh and scp log in as the user of the VM's cloud image, unless the command names
// another user.
func TestLoginUser(t *testing.T) { //nolint:paralleltest // it replaces ssh
	dir := t.TempDir()
	for _, program := range []string{"ssh", "scp"} {
		assert.NoError(t, os.WriteFile(filepath.Join(dir, program), []byte("#!/bin/sh\necho \"$@\"\n"), 0o700))
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	u := newUser(t)
	u.createVM("cloud", "--image=cloud://debian/13")
	u.createVM("own", "--image=cloud://house/1")
	u.mustRun("create", "image", "--driver=qemu", "--image=python:3.13")
	u.createVM("other", "--image=https://images.example/debian/13")
	host := func(name string) string { return name + "." + u.namespace + ".vm" }
	for _, c := range []struct{ args, ends string }{
		{"ssh cloud", " -l debian -- " + host("cloud")},
		{"ssh ann@cloud", " -l ann -- " + host("cloud")},
		{"ssh cloud -l ann", " -l ann -- " + host("cloud")},
		{"cp page cloud:/tmp", " -- page debian@" + host("cloud") + ":/tmp"},
		{"cp ann@cloud:/tmp page", " -- ann@" + host("cloud") + ":/tmp page"},
		{"cp page ann@image:/tmp", " -- page ann@" + host("image") + ":/tmp"},
		{"cp --port=23 page image:/tmp", " -- page " + host("image") + ":/tmp"},
		{"ssh own", "ControlPath=none -- " + host("own")},
		{"ssh other", "ControlPath=none -- " + host("other")},
		{"cp page other:/tmp", " -- page " + host("other") + ":/tmp"},
	} {
		out := u.mustRun(strings.Fields(c.args)...)
		assert.True(t, strings.HasSuffix(out, c.ends+"\n"), "kubectl vm %s runs %q, want %q at its end", c.args, out, c.ends)
	}
	if r := u.run("cp", "image:/etc/hostname", dir); r.code == 0 || strings.Contains(r.out, "ControlPath") || !strings.Contains(r.errs, "serves no consoles, logs, commands") {
		t.Errorf("kubectl vm cp of a machine of a container image does not look for Drover: %+v", r)
	}
}
