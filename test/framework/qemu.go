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

// BuildBootGuest assembles hack/guest/boot.s into an image of dir. The letter ends
// its banner; a stubborn guest ignores the power button.
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

// assembled has the images that this process has assembled, by their options.
var assembled = struct {
	sync.Mutex

	images map[string][]byte
}{images: map[string][]byte{}}

// AssembleBootGuest writes that image to a file. hack/boot-guest.sh has the options.
func AssembleBootGuest(ctx context.Context, path string, options ...string) error {
	assembled.Lock()
	defer assembled.Unlock()
	key := strings.Join(options, " ")
	if image, isThere := assembled.images[key]; isThere {
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

// builtGuestEnv names the folder of a Linux guest that was built before.
const builtGuestEnv = "DROVER_TEST_LINUX_GUEST"

// guestIn returns the guest of a folder.
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
	to := guestIn(dir)
	for from, to := range map[string]string{g.Kernel: to.Kernel, g.Initrd: to.Initrd} {
		content, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(to, content, 0o600)
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
	guest, err := CopyLinuxGuest(dir)
	assert.NoError(t, err)
	return guest
}

// CopyLinuxGuest does the same without a test.
func CopyLinuxGuest(dir string) (LinuxGuest, error) {
	built, err := builtLinuxGuest()
	if err == nil {
		err = built.copyTo(dir)
	}
	return guestIn(dir), err
}

// builtLinuxGuest builds it once per process.
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

// DebianGuest returns the folder that has the Debian of hack/debian-guest.sh, which makes it in
// minutes if it is not there.
func DebianGuest(t testing.TB) string {
	t.Helper()
	root, err := RepositoryRoot()
	assert.NoError(t, err)
	dir, _ := MustRunCommand(t, BuildTimeout, nil, filepath.Join(root, "hack", "debian-guest.sh"))
	return strings.TrimSpace(dir)
}

// QEMUAsked are the cases of a script that stands in for QEMU when it is queried about itself.
const QEMUAsked = "--version) echo version 7.2;; -machine) echo 'q35  PC (alias of pc-q35-7.2)';" +
	" echo 'pc-q35-7.2  PC'; echo 'pc-q35-6.2  PC (deprecated)';;"

// QEMUScript returns a script that any user can run in place of QEMU, by its path or, with its folder
// first in PATH, by its name. It finds the real one by that name.
func QEMUScript(t testing.TB, body string) string {
	t.Helper()
	path := filepath.Join(PublicDir(t), "qemu-system-x86_64")
	assert.NoError(t, WriteProgram(path, []byte("#!/bin/sh\nPATH='"+os.Getenv("PATH")+"'\n"+body+"\n")))
	return path
}

// FailingDisk returns a QEMU whose root disk fails the first writes with an errno.
func FailingDisk(t testing.TB, errno, times int) string {
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

// ImageGuest has the files that boot a container image as a machine, from bin/guest, which make guest builds.
type ImageGuest struct {
	Kernel, Initramfs string
}

// BuildImageGuest builds it, once per process.
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
	return ImageGuest{Kernel: filepath.Join(dir, "vmlinux"), Initramfs: filepath.Join(dir, "initramfs")}, nil
})
