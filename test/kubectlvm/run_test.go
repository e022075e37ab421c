// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlvm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/app"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

// TestRun runs jobs beside a separate `drover up`, whose VMs are containers.
func TestRun(t *testing.T) {
	t.Parallel()
	engine := framework.DockerClient(t)
	env, err := testenv.NewWith(framework.ClusterOptions{WithController: true, Args: []string{"--vm-driver=docker"}})
	assert.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, env.Close()) })
	for name, run := range map[string]func(*testing.T, *runUser){
		"Ends": testRunEnds, "Follows": testRunFollows, "CtrlC": testRunCtrlC, "BrokenPipe": testRunBrokenPipe, "Outage": testRunOutage, "NotRun": testNotRun, "Input": testRunInput,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := &runUser{newUserOf(t, env), engine}
			t.Cleanup(u.deleteAll)
			run(t, u)
		})
	}
}

// runUser is a user who runs jobs in containers of the guest images.
type runUser struct {
	*user
	engine *client.Client
}

// runArgs returns a command line of run, with flags for a small VM inserted before "--".
func (*runUser) runArgs(args ...string) []string {
	return slices.Concat([]string{"run", "--image=" + framework.GuestPlain, "--cpu=500m", "--memory=32Mi"}, args)
}

// deleteAll deletes all VMs, and so all containers.
func (u *runUser) deleteAll() {
	ctx := context.WithoutCancel(u.t.Context())
	if code := app.Main(ctx, u.args([]string{"delete", "--all", "--yes"}), genericiooptions.IOStreams{In: u.stdin, Out: io.Discard, ErrOut: io.Discard}); code != 0 {
		u.t.Errorf("the deletion of all VMs ended with %d", code)
	}
}

// onlyVM returns the only VM of the namespace.
func (u *runUser) onlyVM() *api.VirtualMachine {
	u.t.Helper()
	list, err := u.env.VMsIn(u.namespace).List(u.t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		u.t.Fatalf("there are %d VMs, error %v", len(list.Items), err)
	}
	return &list.Items[0]
}

// testRunEnds runs jobs that end at once, and compares what they print and their exit codes.
func testRunEnds(t *testing.T, u *runUser) {
	t.Helper()
	for code, name := range map[int]string{0: "good", 3: "bad", 255: "worst"} {
		want := fmt.Sprintf("ending with code %d, as EXIT_CODE requests\n", code)
		r := u.run(u.runArgs(name, fmt.Sprintf("--env=EXIT_CODE=%d", code), "--working-dir=/", "--", "an argument")...)
		assert.True(t, r.code == code && strings.Count(r.out, want) == 1 && strings.Count(r.out, "\n") == 1,
			"code %d ended with %d: %q: %s", code, r.code, r.out, r.errs)
		vm := u.getVM(name)
		if vm.Spec.RestartPolicy != api.RestartNever || !slices.Equal(vm.Spec.Args, []string{"an argument"}) || vm.Spec.WorkingDir != "/" || len(vm.Spec.Command) != 0 {
			t.Errorf("the VM is %+v", vm.Spec)
		}
		check := framework.HasPhase(api.PhaseFailed, api.ReasonExited)
		if code == 0 {
			check = framework.HasPhase(api.PhaseStopped, api.ReasonCompleted)
		}
		assert.ReportError(t, check(vm))
	}
}

// testRunFollows checks that the output is printed at once, that a signal becomes an exit code, and that
// --rm deletes the VM, which has a generated name.
func testRunFollows(t *testing.T, u *runUser) {
	t.Helper()
	j := u.start(t.Context(), u.runArgs("--rm")...)
	j.out.waitFor(t, "the demo guest is up\n")
	vm := u.onlyVM()
	image, _, _ := strings.Cut(framework.GuestPlain, ":")
	assert.True(t, strings.HasPrefix(vm.Name, image+"-"), "the VM of image %s has the name %s", framework.GuestPlain, vm.Name)
	assert.NoError(t, assert.ErrorOf(u.engine.ContainerKill(t.Context(), vm.Status.Server.ID, client.ContainerKillOptions{Signal: "SIGKILL"})))
	code := j.waitForExit(t)
	assert.True(t, code == 137 && strings.Count(j.out.String(), "\n") == 1, "it ended with %d: %q: %s", code, j.out.String(), j.errs.String())
	wantTexts(t, j.errs.String(), vm.Name+" created\n", vm.Name+" deleted\n")
	assert.True(t, u.findVM(vm.Name) == nil, "the VM was not deleted")
}

// testRunCtrlC checks that Ctrl-C deletes the VM only with --rm, and that an early Ctrl-C leaves no VM.
func testRunCtrlC(t *testing.T, u *runUser) {
	t.Helper()
	for name, flags := range map[string][]string{"kept": nil, "gone": {"--rm"}} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		j := u.start(ctx, u.runArgs(append(flags, name)...)...)
		j.out.waitFor(t, "the demo guest is up\n")
		cancel()
		code := j.waitForExit(t)
		assert.True(t, code == 130, "%s: it ended with %d: %s", name, code, j.errs.String())
		vm := u.findVM(name)
		assert.True(t, (vm != nil) == (name == "kept"), "%s: the VM is %v", name, vm)
		if name == "kept" {
			wantTexts(t, j.errs.String(), "kept is kept. What it prints: ", " logs -f kept. To delete it: ", " delete kept\n")
			u.waitFor(name, framework.IsActive)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	code := u.start(ctx, u.runArgs("early", "--rm")...).waitForExit(t)
	assert.True(t, code == 130 && u.findVM("early") == nil, "early: it ended with %d, and the VM is %v", code, u.findVM("early"))
}

// testRunBrokenPipe checks that --rm deletes the VM when nobody reads the output any more.
func testRunBrokenPipe(t *testing.T, u *runUser) {
	t.Helper()
	reader, writer, err := os.Pipe()
	assert.NoError(t, err)
	exit := make(chan int, 1)
	go func() {
		exit <- app.Main(t.Context(), u.args(u.runArgs("piped", "--rm")), genericiooptions.IOStreams{In: u.stdin, Out: writer, ErrOut: io.Discard})
	}()
	line := make(chan error, 1)
	go func() { line <- assert.ErrorOf(bufio.NewReader(reader).ReadString('\n')) }()
	assert.NoError(t, errors.Join(assert.Receive(t, "a line of output", line), reader.Close()))
	code := waitForExit(t, exit)
	assert.True(t, code == 141 && u.findVM("piped") == nil, "it ended with %d, and the VM is %v", code, u.findVM("piped"))
}

// testRunOutage cuts the connection while a job ends: output written during the outage is printed at the end.
func testRunOutage(t *testing.T, u *runUser) {
	t.Helper()
	proxy := u.env.NewAPIProxy(t)
	behind := *u.user
	behind.flags = []string{"--kubeconfig=" + proxy.Kubeconfig}
	j := behind.start(t.Context(), u.runArgs("job")...)
	j.out.waitFor(t, "the demo guest is up\n")
	proxy.Disconnect()
	j.errs.waitFor(t, "Warning: the log was interrupted, and goes on as soon as it can be read again: ")
	id := u.getVM("job").Status.Server.ID
	assert.NoError(t, assert.ErrorOf(u.engine.ContainerKill(t.Context(), id, client.ContainerKillOptions{Signal: "SIGTERM"})))
	u.waitFor("job", framework.HasPhase(api.PhaseStopped, api.ReasonCompleted))
	proxy.Restore()
	code, out := j.waitForExit(t), j.out.String()
	if code != 0 || strings.Count(out, "the demo guest is up\n") != 1 || strings.Count(out, "ending on terminated\n") != 1 || strings.Count(out, "\n") != 2 {
		t.Errorf("it ended with %d: %q: %s", code, out, j.errs.String())
	}
}

// terminalScript prints the size of its terminal after each line, until Ctrl-C.
const terminalScript = `trap 'exit 5' INT; echo is up; while read -r line; do echo "$line $(stty size)"; done`

// testRunInput passes a pipe on to its end, and uses a terminal, which is left and used again.
func testRunInput(t *testing.T, u *runUser) {
	t.Helper()
	image := framework.NewRegistry(t, nil) + "/busybox:1"
	framework.PushImage(t, image, framework.BusyBoxImage(t, v1.Config{Entrypoint: []string{"/bin/sh", "-c"}}))
	t.Cleanup(func() {
		u.deleteAll()
		assert.NoError(t, assert.ErrorOf(u.engine.ImageRemove(context.WithoutCancel(t.Context()), image, client.ImageRemoveOptions{Force: true})))
	})
	piped := *u.user
	piped.stdin = strings.NewReader(strings.Repeat("0123456789abcdef", 1<<16))
	r := piped.run("run", "--image="+image, "--memory=32Mi", "-i", "--rm", "--", "wc -c")
	assert.True(t, r.code == 0 && r.out == "1048576\n", "it ended with %d: %q: %s", r.code, r.out, r.errs)

	tty := newTerminal(t, 90, 7)
	before, err := unix.IoctlGetTermios(int(tty.program.Fd()), unix.TCGETS)
	assert.NoError(t, err)
	tty.startCommand(t.Context(), u.user, "run", "--image="+image, "--memory=32Mi", "-it", "shell", "--", terminalScript)
	tty.text.waitFor(t, "is up\r\n")
	tty.text.waitFor(t, "Ctrl-] leaves.")
	assert.Eventually(t, "the terminal has its size", func(t testing.TB) error {
		tty.typeText(t, "typed\r")
		return assert.ErrorUnless(strings.Contains(tty.text.String(), "\r\ntyped 7 90\r\n"), "it prints %q", tty.text.String())
	})
	tty.typeText(t, "\x1d")
	code := tty.waitForExit(t)
	after, err := unix.IoctlGetTermios(int(tty.program.Fd()), unix.TCGETS)
	assert.NoError(t, err)
	text := tty.close()
	assert.True(t, code == 0 && *after == *before, "it ended with %d and the terminal %+v, at first %+v: %q", code, after, before, text)
	wantTexts(t, text, "shell runs on. To return to it: ", " console shell. To delete it: ")

	tty = newTerminal(t, 80, 24)
	tty.startCommand(t.Context(), u.user, "console", "shell")
	tty.text.waitFor(t, "typed 7 90\r\n")
	tty.typeText(t, "again\r")
	tty.text.waitFor(t, "\r\nagain ")
	tty.typeText(t, "\x03")
	u.waitFor("shell", framework.HasPhase(api.PhaseFailed, api.ReasonExited))
	assert.Equal(t, "the exit code", u.getVM("shell").Status.Server.Terminated.ExitCode, 5)
	tty.typeText(t, "\x1d")
	code = tty.waitForExit(t)
	assert.True(t, code == 0, "the console ended with %d: %q", code, tty.close())
}

// testNotRun checks the exit code for VMs that never run, that --rm deletes these too, and which flags are refused.
func testNotRun(t *testing.T, u *runUser) {
	t.Helper()
	u.mustFail(125, []string{"bad is not ready: Failed, Invalid", `spec.command: the program "/nope" does not exist in image`},
		u.runArgs("bad", "--rm", "--command", "--", "/nope", "x")...)
	vm := u.findVM("bad")
	assert.True(t, vm == nil, "the VM was not deleted: %+v", vm)
	u.mustFail(1, []string{"--tty with --stdin needs a terminal"}, u.runArgs("x", "-it", "--", "sh")...)
	u.mustFail(1, []string{"--command needs a command after --"}, u.runArgs("x", "--command")...)
	u.mustFail(1, []string{`--env "A": a variable must be NAME=VALUE, and be given only once`}, u.runArgs("x", "--env=A=1", "--env=A=2")...)
	u.mustFail(1, []string{"put -- before the arguments"}, u.runArgs("x", "sh")...)
	u.mustFail(1, []string{"cpu is 9999"}, u.runArgs("x", "--rm", "--cpu=9999")...)
	vm = u.findVM("x")
	assert.True(t, vm == nil, "there is a VM: %+v", vm)
}

// TestCreateWithCommand checks which fields create sets for a command of a container image.
func TestCreateWithCommand(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	vm := u.createVM("args", "--env=A=1=2", "--env=B=", "--working-dir=/srv", "--user=ann", "--init=Image", "-it", "--sysctl=net.core.somaxconn=4096", "--", "sh", "-c", "--wait")
	if s := vm.Spec; !slices.Equal(s.Args, []string{"sh", "-c", "--wait"}) || len(s.Command) != 0 || s.WorkingDir != "/srv" || s.RestartPolicy != api.RestartNever ||
		!slices.Equal(s.Env, []api.EnvVar{{Name: "A", Value: "1=2"}, {Name: "B"}}) ||
		s.User != "ann" || !s.Stdin || !s.TTY || s.Init != api.InitImage || !slices.Equal(s.Sysctls, []api.Sysctl{{Name: "net.core.somaxconn", Value: "4096"}}) {
		t.Errorf("the VM is %+v", s)
	}
	vm = u.createVM("command", "--command", "--restart-policy=OnFailure", "--", "sh")
	s := vm.Spec
	assert.True(t, slices.Equal(s.Command, []string{"sh"}) && len(s.Args) == 0 && s.RestartPolicy == api.RestartOnFailure, "the VM is %+v", s)
	vm = u.createVM("plain")
	assert.True(t, vm.Spec.RestartPolicy == api.RestartAlways, "the VM is %+v", vm.Spec)
	u.mustFail(1, []string{"put -- before the command"}, "create", "web", "sh")
	u.mustFail(1, []string{`--sysctl "a": a parameter must be NAME=VALUE`}, "create", "web", "--sysctl=a")
	u.mustFail(1, []string{"Image", "Drover"}, "create", "web", "--init=yes")
}
