// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/drivertest/containers"
	"cloudnative.tw/drover/internal/driver/qemu/containerboot"
	"cloudnative.tw/drover/internal/driver/qemu/folder"
	"cloudnative.tw/drover/internal/guest/files"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/internal/terminal"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

// container is a machine of a container image.
type container struct {
	e    *engine
	d    *Driver
	spec driver.ServerSpec
}

// openForContainers returns a driver that takes container images of a registry that the test runs, by tag.
func (e *engine) openForContainers(t *testing.T, registry string) *Driver {
	t.Helper()
	o := e.options()
	o.Fetch.PlainHTTP, o.UncheckedImages, o.GuestKernel = []string{registry}, true, framework.GuestKernel(t)
	return openWith(t, o)
}

// newContainer opens a driver that may fetch an image with BusyBox, and returns a spec of that image.
func newContainer(t *testing.T, config v1.Config) *container {
	t.Helper()
	return newImageContainer(t, framework.BusyBoxImage(t, config))
}

// newImageContainer does so for any image.
func newImageContainer(t *testing.T, made v1.Image) *container {
	t.Helper()
	return newContainerOn(t, newEngine(t), made)
}

// newContainerOn does so with an engine.
func newContainerOn(t *testing.T, e *engine, made v1.Image) *container {
	t.Helper()
	host := framework.NewRegistry(t, nil)
	framework.PushImage(t, host+"/image:1", made)
	c := &container{e: e, d: e.openForContainers(t, host), spec: e.spec()}
	c.spec.MemoryBytes, c.spec.RootDiskBytes = 128<<20, 1<<30
	c.spec.Image = driver.Image{Source: host + "/image:1"}
	return c
}

// prints waits until the log of the machine has a text.
func (c *container) prints(t *testing.T, text string) {
	t.Helper()
	assert.Eventually(t, "it prints "+text, func(t testing.TB) error {
		log, err := c.d.Logs(t.Context(), c.spec.UID, driver.LogOptions{})
		if err != nil {
			return err
		}
		defer func() { _ = log.Close() }()
		got, err := io.ReadAll(log)
		assert.Contains(t, "it has printed", string(got), text)
		return err
	})
}

// exec runs a shell command beside the image's, and returns its output and its exit code.
func (c *container) exec(t *testing.T, tty bool, stdin, command string) (string, int) {
	t.Helper()
	var out bytes.Buffer
	var code int
	sizes := make(chan terminal.Size, 1)
	sizes <- terminal.Size{Width: 100, Height: 40}
	assert.Eventually(t, command+" is run", func(t testing.TB) (err error) {
		out.Reset()
		code, err = c.d.Exec(t.Context(), c.spec.UID, terminal.Command{
			Args: []string{"sh", "-c", command}, Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &out, TTY: tty, Resize: sizes,
		})
		return err
	})
	return out.String(), code
}

// checkFiles copies a file in and out, which belongs to the image's user inside.
func (c *container) checkFiles(t *testing.T) {
	t.Helper()
	run := func(stdin io.Reader, want int, args ...string) string {
		var out, errs bytes.Buffer
		code, err := c.d.Exec(t.Context(), c.spec.UID, terminal.Command{Args: args, Stdin: stdin, Stdout: &out, Stderr: &errs})
		assert.True(t, err == nil && code == want, "%q ends with %d and prints %q, %v", args, code, errs.String(), err)
		return out.String() + errs.String()
	}
	local := t.TempDir()
	assert.NoError(t, os.WriteFile(local+"/there", bytes.Repeat([]byte("x"), 1_000_000), 0o600))
	var stream bytes.Buffer
	assert.NoError(t, files.Pack(&stream, local+"/there"))
	run(&stream, 0, files.WriteCommand, "sent")
	out, _ := c.exec(t, false, "", "stat -c '%U %s' /home/ann/sent")
	assert.True(t, out == "ann 1000000\n", "what was sent is %q", out)
	back := run(strings.NewReader(""), 0, files.ReadCommand, "/home/ann/sent")
	assert.NoError(t, files.Unpack(strings.NewReader(back), files.Destination{Folder: local, Name: "back"}))
	info, err := os.Stat(local + "/back")
	assert.True(t, err == nil && info.Size() == 1_000_000, "what came back is %+v, %v", info, err)
	says := run(strings.NewReader(""), 1, files.ReadCommand, "/none")
	assert.True(t, strings.Contains(says, "no such file"), "it says %q of a file that is not there", says)
	says = run(strings.NewReader(""), 1, files.WriteCommand)
	assert.True(t, strings.Contains(says, "one path"), "it says %q to no path", says)
}

// wantExit waits until the machine has ended by itself.
func (c *container) wantExit(t *testing.T, code int, reason string) {
	t.Helper()
	exit := reach(t, c.d, c.spec, driver.StateStopped).Exit
	assert.True(t, exit != nil && exit.Code == code && exit.Reason == reason, "it ended with %+v, want %d %s", exit, code, reason)
}

// TestContainers runs the cases that driver docker runs with containers of the same images.
func TestContainers(t *testing.T) {
	t.Parallel()
	containers.Run(t, containerHarness(t))
}

// TestImages does the same with images of real programs.
func TestImages(t *testing.T) {
	t.Parallel()
	containers.RunImages(t, containerHarness(t))
}

// TestWorkloads runs images that only a machine can run.
func TestWorkloads(t *testing.T) {
	t.Parallel()
	containers.RunWorkloads(t, containerHarness(t))
}

func containerHarness(t *testing.T) containers.Harness {
	t.Helper()
	e := newEngine(t)
	return containers.Harness{
		Open:      func(t *testing.T, registry string) driver.Driver { t.Helper(); return e.openForContainers(t, registry) },
		IsMachine: true,
		Dir:       e.dir,
	}
}

// TestContainer boots a container image: commands run beside the image's, with terminals and exit codes, and a new
// supervisor reaches them too. An older version's machine boots after the store was emptied, without fetching anything.
func TestContainer(t *testing.T) {
	t.Parallel()
	c := newContainer(t, v1.Config{Entrypoint: []string{"/bin/sh", "-c"}, User: "ann", WorkingDir: "/home/ann"})
	c.spec.Args, c.spec.GracePeriod = []string{`trap 'exit 7' TERM; echo x >>boots; while :; do sleep 0.1; done`}, 10*time.Minute
	changes, err := c.d.Watch(t.Context())
	assert.NoError(t, err)
	first := reach(t, c.d, c.spec, driver.StateRunning)
	c.awaitBoot(t, changes)
	out, code := c.exec(t, false, "input\n", "cat; id -un; pwd; exit 3")
	assert.True(t, code == 3 && out == "input\nann\n/home/ann\n", "the code is %d, and it printed %q", code, out)
	out, code = c.exec(t, true, "", "sleep 0.1; stty size; kill -9 $$")
	assert.True(t, code == 137 && strings.Contains(out, "40 100"), "with a terminal the code is %d, and it printed %q", code, out)
	out, code = c.exec(t, false, "", "exec <>/dev/fuse")
	assert.True(t, code == 0, "the kernel loads no module: %d, %q", code, out)
	c.checkFiles(t)
	c.checkBusy(t)
	signalSupervisor(t, c.d.Host.InstanceOf(c.spec.UID), syscall.SIGKILL)
	out, code = c.exec(t, false, "", "until test -s boots; do sleep 0.1; done; cat boots")
	assert.True(t, code == 0 && out == "x\n", "after the supervisor was killed the code is %d, and it printed %q", code, out)
	c.spec.Power = driver.PowerOff
	c.wantExit(t, 7, "Error")

	c.outdateTemplate(t)
	assert.NoError(t, os.RemoveAll(c.d.Host.StateDir.Path(cacheDir)))
	c.spec.Image.PullPolicy = driver.PullNever
	c.spec.Power, c.spec.RestartRun = driver.PowerOn, first.Run
	c.spec.Args = []string{"exit $(wc -c <boots)"}
	reach(t, c.d, c.spec, driver.StateRunning)
	c.spec.RestartRun = ""
	c.wantExit(t, 2, "Error")
	gone(t, c.d, c.spec)
}

// checkBusy checks that a command is refused, with the limit, while as many run as may.
func (c *container) checkBusy(t *testing.T) {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan error, failure.MaxStreams+1)
	for range cap(ended) {
		go func() {
			ended <- assert.ErrorOf(c.d.Exec(ctx, c.spec.UID, terminal.Command{Args: []string{"sleep", "1000000"}}))
		}()
	}
	assert.ErrorIs(t, "one more command", assert.Receive(t, "the end of a command", ended), driver.ErrBusy, "32 commands and consoles are already open")
	leave()
	for range failure.MaxStreams {
		_ = assert.Receive(t, "the end of a command", ended)
	}
}

// awaitBoot waits until the machine is reported to have booted, and checks that this follows from the guest's report.
func (c *container) awaitBoot(t *testing.T, changes <-chan types.UID) {
	t.Helper()
	isBooting := func() bool {
		all, err := c.d.List(t.Context(), c.spec.UID)
		assert.NoError(t, err)
		assert.Require(t, len(all) == 1, "there are %d servers", len(all))
		return all[0].IsBooting
	}
	for isBooting() {
		assert.Receive(t, "a change of the machine", changes)
	}
	inst, err := c.d.Host.InstanceOf(c.spec.UID).Load()
	assert.NoError(t, err)
	result := inst.ExitRecord().ResultFile()
	reported, err := os.ReadFile(result)
	assert.NoError(t, err)
	assert.NoError(t, os.WriteFile(result, make([]byte, len(reported)), 0o600))
	assert.True(t, isBooting(), "without a report of the guest it is not booting")
	assert.NoError(t, os.WriteFile(result, reported, 0o600))
}

// outdateTemplate changes the machine as if another version of Drover, with another template, had made its disks.
func (c *container) outdateTemplate(t *testing.T) {
	t.Helper()
	inst, err := c.d.Host.InstanceOf(c.spec.UID).Load()
	assert.NoError(t, err)
	kept := inst.Machine.File(inst.Root.Template)
	inst.Root.Template = image.TemplatePrefix + "of-another-version"
	assert.NoError(t, errors.Join(os.Rename(kept, inst.Machine.File(inst.Root.Template)), inst.Save()))
}

// TestContainerIsEphemeral checks that an ephemeral machine begins each run with its image, and takes another one then.
func TestContainerIsEphemeral(t *testing.T) {
	t.Parallel()
	c := newContainer(t, v1.Config{Entrypoint: []string{"/bin/sh", "-c", "test -e /was && exit 9; touch /was; exit 0"}, Env: []string{"PATH=/bin"}})
	c.spec.Ephemeral, c.spec.RootDiskBytes = true, 0
	first := reach(t, c.d, c.spec, driver.StateRunning)
	c.wantExit(t, 0, "Completed")
	c.spec.RestartRun = first.Run
	second := reach(t, c.d, c.spec, driver.StateRunning)
	c.spec.RestartRun = ""
	c.wantExit(t, 0, "Completed")

	host, _, _ := strings.Cut(c.spec.Image.Source, "/")
	c.spec.Image.Source = host + "/image:2"
	framework.PushImage(t, c.spec.Image.Source, framework.BusyBoxImage(t, v1.Config{Entrypoint: []string{"/bin/absent"}}))
	c.spec.RestartRun = second.Run
	third := reach(t, c.d, c.spec, driver.StateRunning)
	assert.True(t, third.ImageID != second.ImageID && third.Refused == nil,
		"the image is %s, was %s, and is refused with %+v", third.ImageID, second.ImageID, third.Refused)
	c.spec.RestartRun = ""
	c.wantExit(t, 127, "Error")
	if kept := c.d.keptBy(t, c.spec); len(kept) != 2 { // the template, and one root
		t.Errorf("it keeps %q", kept)
	}
	gone(t, c.d, c.spec)
}

// TestContainerPrintsUnread checks that a command whose output was not read for a while goes on, and that its exit
// code and the end of its output are kept.
func TestContainerPrintsUnread(t *testing.T) {
	t.Parallel()
	tier.Full(t, "it takes another boot, and prints 10 MB; the gate kills a supervisor in TestContainer")
	script := `line=$(printf %01000d 0); until test -e /dev/shm/go; do sleep 0.1; done
n=0; while test $n -lt 10000; do echo "$n $line"; n=$((n+1)); done; echo last words; exit 5`
	c := newContainer(t, v1.Config{Entrypoint: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/bin"}})
	reach(t, c.d, c.spec, driver.StateRunning)
	c.exec(t, false, "", "touch /dev/shm/go")
	c.prints(t, "\n100 0")
	signalSupervisor(t, c.d.Host.InstanceOf(c.spec.UID), syscall.SIGKILL)
	c.wantExit(t, 5, "Error")
	c.prints(t, "last words")
}

// attack moves all processes that root of the image can name, except itself, to a control group that it freezes.
const attack = `cd /sys/fs/cgroup && mkdir cage
for p in $(cat cgroup.procs); do test $p = 0 || test $p = $$ || echo $p >cage/cgroup.procs 2>/dev/null; done
echo 1 >cage/cgroup.freeze; until grep -qx "frozen 1" cage/cgroup.events; do sleep 0.1; done; grep frozen cage/cgroup.events`

// TestContainerReboots checks that reboot(2) in a container image's machine boots it again within its run, and that the
// guest's agent runs on although root of the image freezes all processes that it can name.
func TestContainerReboots(t *testing.T) {
	t.Parallel()
	tier.Full(t, "it takes two boots; the gate reboots a machine in package boot")
	c := newContainer(t, v1.Config{Entrypoint: []string{"/bin/sh", "-c", "echo x >>/boots; echo boot $(wc -l </boots); sleep 100000"}, Env: []string{"PATH=/bin"}})
	first := reach(t, c.d, c.spec, driver.StateRunning)
	c.prints(t, "boot 1")
	if out, code := c.exec(t, false, "", attack); code != 0 || out != "frozen 1\n" {
		t.Errorf("the code of the attack is %d, and it printed %q", code, out)
	}
	_, _ = c.d.Exec(t.Context(), c.spec.UID, terminal.Command{Args: []string{"busybox", "reboot", "-f"}, Stdout: io.Discard, Stderr: io.Discard})
	c.prints(t, "boot 2")
	if out, code := c.exec(t, false, "", "cat /boots"); code != 0 || out != "x\nx\n" {
		t.Errorf("the code is %d, and it printed %q", code, out)
	}
	if now := reach(t, c.d, c.spec, driver.StateRunning); now.Run != first.Run {
		t.Errorf("the run was %s and is %s", first.Run, now.Run)
	}
	_, _ = c.d.Exec(t.Context(), c.spec.UID, terminal.Command{Args: []string{"busybox", "poweroff", "-f"}, Stdout: io.Discard, Stderr: io.Discard})
	c.wantExit(t, 0, "Completed")
	gone(t, c.d, c.spec)
}

// TestContainerIsPruned removes images while a machine is created, starts and runs. An image that was fetched and is not
// used yet is fetched again. An image that is used stays.
func TestContainerIsPruned(t *testing.T) {
	t.Parallel()
	c := newContainer(t, v1.Config{Entrypoint: []string{"/bin/sh", "-c", "echo begins; sleep 100000"}, Env: []string{"PATH=/bin"}})
	c.spec.Ephemeral, c.spec.RootDiskBytes = true, 0
	images, err := folder.Open(c.e.dir, clock.RealClock{})
	assert.NoError(t, err)
	prune := func(want int) {
		removed, err := images.PruneImages(t.Context())
		assert.NoError(t, err)
		assert.True(t, len(removed) == want, "it removed %+v, want %d", removed, want)
	}
	if s, err := c.d.Ensure(t.Context(), c.spec); err != nil || s.State != driver.StatePending {
		t.Fatalf("it is %s, %v", s.State, err)
	}
	assert.Eventually(t, "the image is fetched", func(testing.TB) error {
		all, err := images.Images()
		if len(all) == 0 || len(all[0].Sources) == 0 {
			return errors.Join(err, fmt.Errorf("there are %+v", all))
		}
		return err
	})
	prune(1)
	s := reach(t, c.d, c.spec, driver.StateRunning)
	prune(0)
	c.prints(t, "begins")

	host, _, _ := strings.Cut(c.spec.Image.Source, "/")
	c.spec.Image.Source = host + "/busybox:2"
	framework.PushImage(t, c.spec.Image.Source, framework.BusyBoxImage(t, v1.Config{Entrypoint: []string{"/bin/sleep", "100000"}}))
	c.spec.RestartRun = s.Run
	assert.Eventually(t, "it runs the next image", func(testing.TB) error {
		s, err := c.d.Ensure(t.Context(), c.spec)
		if s.Run == c.spec.RestartRun {
			err = errors.Join(err, errors.New("it has not been restarted"))
		}
		return errors.Join(err, assert.ErrorOf(images.PruneImages(t.Context())))
	})
	c.spec.RestartRun = ""
	reach(t, c.d, c.spec, driver.StateRunning)
	gone(t, c.d, c.spec)
	_, err = images.PruneImages(t.Context())
	assert.NoError(t, err)
	all, err := images.Images()
	assert.True(t, err == nil && len(all) == 0, "left are %+v, %v", all, err)
}

// TestContainerFields checks that fields which mean nothing for an image are refused by name, before any machine is made.
func TestContainerFields(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	for name, change := range map[string]struct {
		change      func(*driver.ServerSpec)
		isContainer bool
		kind        error
		says        string
	}{
		"command for a disk":     {func(s *driver.ServerSpec) { s.Command = []string{"x"} }, false, driver.ErrUnsupported, "spec.command"},
		"args for a disk":        {func(s *driver.ServerSpec) { s.Args = []string{"x"} }, false, driver.ErrUnsupported, "spec.args"},
		"env for a disk":         {func(s *driver.ServerSpec) { s.Env = []driver.EnvVar{{Name: "A"}} }, false, driver.ErrUnsupported, "spec.env"},
		"workingDir for a disk":  {func(s *driver.ServerSpec) { s.WorkingDir = "/x" }, false, driver.ErrUnsupported, "spec.workingDir"},
		"user-data for an image": {func(s *driver.ServerSpec) { s.UserData = driver.NewSecret("x") }, true, driver.ErrUnsupported, "spec.userData"},
		"network for an image":   {func(s *driver.ServerSpec) { s.NetworkData = driver.NewSecret("x") }, true, driver.ErrUnsupported, "spec.networkData"},
		"keys for an image":      {func(s *driver.ServerSpec) { s.SSHKeys = []string{"x"} }, true, driver.ErrUnsupported, "spec.sshAuthorizedKeys"},
		"a kernel for an image":  {func(s *driver.ServerSpec) { s.Image.Kernel = &driver.Kernel{Source: "/x"} }, true, driver.ErrUnsupported, "spec.image.kernel"},
		"little memory":          {func(s *driver.ServerSpec) { s.MemoryBytes = 64 << 20 }, true, driver.ErrInvalid, "128Mi"},
		"a command for an image": {func(s *driver.ServerSpec) { s.Command = []string{"x"} }, true, nil, ""},
		"user-data for a disk":   {func(s *driver.ServerSpec) { s.UserData = driver.NewSecret("x") }, false, nil, ""},
	} {
		spec := e.spec()
		if change.isContainer {
			spec.MemoryBytes = 128 << 20
		}
		change.change(&spec)
		assert.ErrorIs(t, name, containerboot.CheckFields(spec, change.isContainer), change.kind, change.says)
	}
}

// TestBuiltInImage checks which servers boot the built-in image, and the error where it is missing.
func TestBuiltInImage(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	o := e.options()
	o.Image, o.GuestKernel = DefaultOptions().Image, t.TempDir()
	d := openWith(t, o)
	spec := e.spec()
	spec.Image = driver.Image{}
	assert.Eventually(t, "the missing file is reported", func(t testing.TB) error {
		err := assert.ErrorOf(d.Ensure(t.Context(), spec))
		wantError(t, err, driver.ErrRetry, "ImageUnavailable", "image.source", "--qemu-kernel", "make guest")
		return nil
	})
	leavesNothing(t, d)

	spec.Image.Kernel, spec.Power = &driver.Kernel{Source: e.plain}, driver.PowerOff
	s, err := d.Ensure(t.Context(), spec)
	assert.NoError(t, err)
	assert.True(t, s.State == driver.StateStopped && s.ImageID == "", "with another kernel it is %+v, want it there without an image", s)
}
