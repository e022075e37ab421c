// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package containerboot

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"cloudnative.tw/drover/internal/atomicfile"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/guest/config"
	"cloudnative.tw/drover/internal/image/diskimage"
	"cloudnative.tw/drover/internal/machine/launch"
)

// Files in the folder of the kernel that boots container images.
const (
	guestKernelFile = "vmlinux"
	guestInitrdFile = "initramfs"
	guestAboutFile  = "kernel.json"
)

// guestCmdline is the command line of the kernel. It ends the machine at a panic, and skips the kernel's tests.
const guestCmdline = "console=ttyS0 quiet panic=-1 cryptomgr.notests 8250.nr_uarts=1"

// maxAbout is more than guestAboutFile has.
const maxAbout = 64 << 10

// OpenKernel opens the kernel in a folder, which boots container images, and returns its digest too.
func OpenKernel(dir, accel string, files *launch.Files) (opened *launch.Kernel, digest string, err error) {
	unusable := func(err error) error {
		return driver.Errorf(driver.ErrRetry, "a container image needs the kernel in %s (--qemu-kernel), which make guest makes: %w", dir, err)
	}
	text, _, err := atomicfile.Read(filepath.Join(dir, guestAboutFile), maxAbout)
	if err != nil {
		return nil, "", unusable(err)
	}
	var about struct {
		SHA256       string `json:"vmlinuxSHA256"`
		GuestVersion int    `json:"guestVersion"`
	}
	if err := json.Unmarshal(text, &about); err != nil || about.SHA256 == "" {
		return nil, "", unusable(fmt.Errorf("%s lacks vmlinuxSHA256", guestAboutFile))
	}
	if about.GuestVersion != config.Version {
		return nil, "", unusable(fmt.Errorf("guestVersion in %s is %d, want %d: it is of another Drover, so run make guest", guestAboutFile, about.GuestVersion, config.Version))
	}
	opened = &launch.Kernel{Cmdline: guestCmdline}
	if accel == launch.AccelTCG {
		opened.Cmdline += " no_timer_check" // an emulator delivers timers late
	}
	for name, fd := range map[string]*int{guestKernelFile: &opened.FD, guestInitrdFile: &opened.InitrdFD} {
		var f *os.File
		if f, err = diskimage.OpenRegular(filepath.Join(dir, name), true); err != nil {
			return nil, "", unusable(err)
		}
		*fd = files.Add(f)
	}
	return opened, about.SHA256, nil
}
