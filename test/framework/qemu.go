// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework/filelock"
)

// QEMUBinary returns the path of the QEMU that tests run.
func QEMUBinary(t testing.TB) string {
	t.Helper()
	path, err := exec.LookPath("qemu-system-x86_64")
	assert.Require(t, err == nil, "the tests need QEMU, which hack/qemu.sh installs: %v", err)
	return path
}

// RunQEMUImg runs qemu-img and returns what it printed.
func RunQEMUImg(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "qemu-img", args...).CombinedOutput()
	assert.Require(t, err == nil, "qemu-img %v (hack/qemu.sh installs it): %v\n%s", args, err, out)
	return string(out)
}

// BuildBootGuest assembles hack/guest/boot.s into an image in dir. The guest's banner ends
// with the letter; a stubborn guest ignores the power button.
func BuildBootGuest(t testing.TB, dir, letter string, stubborn bool) string {
	t.Helper()
	ignoresButton := "0"
	if stubborn {
		ignoresButton = "1"
	}
	path := filepath.Join(dir, "boot-"+letter+ignoresButton+".img")
	assert.NoError(t, AssembleBootGuest(t.Context(), path, letter, ignoresButton))
	return path
}

// assembled has the images that this process has assembled, keyed by their options.
var assembled = struct {
	sync.Mutex

	images map[string][]byte
}{images: map[string][]byte{}}

// AssembleBootGuest writes an image of hack/guest/boot.s to a file. hack/boot-guest.sh describes the options.
func AssembleBootGuest(ctx context.Context, path string, options ...string) error {
	assembled.Lock()
	defer assembled.Unlock()
	key := strings.Join(options, " ")
	if image, ok := assembled.images[key]; ok {
		return os.WriteFile(path, image, 0o644)
	}
	root, err := RepositoryRoot()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(root, "hack", "boot-guest.sh"), append([]string{path}, options...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("assembling the guest: %w\n%s", err, out)
	}
	assembled.images[key], err = os.ReadFile(path)
	return err
}

// LinuxGuest is the Linux guest of hack/guest/linux.
type LinuxGuest struct {
	Kernel, Initrd string
}

// GuestCmdline is a command line of the kernel for the Linux guest under TCG. On a busy host TCG may deliver timer
// interrupts too late for the kernel's check of them, which then stops the boot. The timers are periodic: a CPU that
// programs each interrupt separately stops forever when one is lost.
const GuestCmdline = "console=ttyS0 quiet panic=-1 no_timer_check nohz=off highres=off"

// DebianCmdline is a command line of the kernel for the guest of DebianGuest under TCG.
const DebianCmdline = "root=/dev/vda rw console=ttyS0 panic=-1 no_timer_check"

// builtGuestEnv is the variable with the folder of a Linux guest that is already built.
const builtGuestEnv = "DROVER_TEST_LINUX_GUEST"

// guestIn returns the guest whose files are in a folder.
func guestIn(dir string) LinuxGuest {
	return LinuxGuest{Kernel: filepath.Join(dir, "vmlinuz"), Initrd: filepath.Join(dir, "initrd")}
}

// copyTo copies the files of the guest, if it has any, into a folder, which need not exist.
func (g LinuxGuest) copyTo(dir string) error {
	if g.Kernel == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	guest := guestIn(dir)
	for source, target := range map[string]string{g.Kernel: guest.Kernel, g.Initrd: guest.Initrd} {
		content, err := os.ReadFile(source)
		if err == nil {
			err = os.WriteFile(target, content, 0o600)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// BuildLinuxGuest builds the Linux guest in bin/linux-guest of this checkout and returns
// copies of its files in dir.
func BuildLinuxGuest(t testing.TB, dir string) LinuxGuest {
	t.Helper()
	guest, err := BuildLinuxGuestIn(dir)
	assert.NoError(t, err)
	return guest
}

// BuildLinuxGuestIn is BuildLinuxGuest for callers outside tests: it returns the error.
func BuildLinuxGuestIn(dir string) (LinuxGuest, error) {
	built, err := builtLinuxGuest()
	if err == nil {
		err = built.copyTo(dir)
	}
	return guestIn(dir), err
}

// builtLinuxGuest builds the Linux guest, once per process.
var builtLinuxGuest = sync.OnceValues(func() (LinuxGuest, error) {
	if dir := os.Getenv(builtGuestEnv); dir != "" {
		return guestIn(dir), nil
	}
	root, err := RepositoryRoot()
	if err != nil {
		return LinuxGuest{}, err
	}
	unlock, err := filelock.Lock(filepath.Join(root, "bin", ".guest.lock"))
	if err != nil {
		return LinuxGuest{}, err
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(context.Background(), imageTimeout)
	defer cancel()
	dir := filepath.Join(root, "bin", "linux-guest")
	out, err := exec.CommandContext(ctx, filepath.Join(root, "hack", "linux-guest.sh"), dir).CombinedOutput()
	if err != nil {
		return LinuxGuest{}, fmt.Errorf("building the Linux guest: %w\n%s", err, out)
	}
	return guestIn(dir), nil
})

// DebianGuest returns the folder with the Debian guest. If the guest is missing, hack/debian-guest.sh
// builds it, which takes minutes.
func DebianGuest(t testing.TB) string {
	t.Helper()
	root, err := RepositoryRoot()
	assert.NoError(t, err)
	dir, _ := MustRunCommand(t, BuildTimeout, nil, filepath.Join(root, "hack", "debian-guest.sh"))
	return strings.TrimSpace(dir)
}

// QEMUQueryCases are cases of a shell script that replaces QEMU. They answer queries for the version and machine types.
const QEMUQueryCases = "--version) echo version 7.2;; -machine) echo 'q35  PC (alias of pc-q35-7.2)';" +
	" echo 'pc-q35-7.2  PC'; echo 'pc-q35-6.2  PC (deprecated)';;"

// QEMUScript returns a script that any user can run in place of QEMU, by its path or, with its folder first
// in PATH, by its name. Within the script, qemu-system-x86_64 is the real QEMU.
func QEMUScript(t testing.TB, body string) string {
	t.Helper()
	path := filepath.Join(PublicDir(t), "qemu-system-x86_64")
	assert.NoError(t, WriteProgram(path, []byte("#!/bin/sh\nPATH='"+os.Getenv("PATH")+"'\n"+body+"\n")))
	return path
}

// FailingDiskScript returns a script that runs QEMU with a root disk whose first writes fail with an errno.
func FailingDiskScript(t testing.TB, errno, times int) string {
	t.Helper()
	rule := fmt.Sprintf(`{\"event\":\"none\",\"iotype\":\"write\",\"errno\":%d,\"once\":true,\"immediately\":true}`, errno)
	return QEMUScript(t, fmt.Sprintf(`inject="%s"
for a; do
	shift
	case $a in *'"node-name":"root"'*)
		a=$(printf %%s "$a" | sed 's/"file":\({"discard[^}]*}\)/"file":{"driver":"blkdebug","image":\1,"inject-error":['"$inject"']}/') ;;
	esac
	set -- "$@" "$a"
done
exec qemu-system-x86_64 "$@"`, strings.TrimSuffix(strings.Repeat(rule+",", times), ",")))
}

// ImageGuest has the files that boot a container image as a machine, from bin/guest, which "make guest" builds.
type ImageGuest struct {
	Kernel, Initramfs, Modules string
}

// BuildImageGuest builds an ImageGuest, once per process.
var BuildImageGuest = sync.OnceValues(func() (ImageGuest, error) {
	root, err := RepositoryRoot()
	if err != nil {
		return ImageGuest{}, err
	}
	unlock, err := filelock.Lock(filepath.Join(root, "bin", ".guest.lock"))
	if err != nil {
		return ImageGuest{}, err
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(context.Background(), imageTimeout)
	defer cancel()
	dir := filepath.Join(root, "bin", "guest")
	if out, err := exec.CommandContext(ctx, filepath.Join(root, "hack", "guest.sh"), dir).CombinedOutput(); err != nil {
		return ImageGuest{}, fmt.Errorf("building the guest of container images: %w\n%s", err, out)
	}
	modules, err := filepath.Glob(filepath.Join(dir, "modules-*.erofs"))
	if err != nil || len(modules) != 1 {
		return ImageGuest{}, fmt.Errorf("%s has the modules %q: %w", dir, modules, err)
	}
	return ImageGuest{Kernel: filepath.Join(dir, "vmlinux"), Initramfs: filepath.Join(dir, "initramfs"), Modules: modules[0]}, nil
})
