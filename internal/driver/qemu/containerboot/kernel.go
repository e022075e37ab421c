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
	// guestModulesFile has the beginning of the kernel's digest in its name, so no kernel gets the modules of another one.
	guestModulesFile = "modules-%.16s.erofs"
)

// guestCmdline is the kernel's command line. It ends the machine after a panic, and skips self-tests of the kernel.
const guestCmdline = "console=ttyS0 quiet panic=-1 cryptomgr.notests 8250.nr_uarts=1"

// maxAbout is above the size in bytes of guestAboutFile.
const maxAbout = 64 << 10

// Kernel is an open kernel for container images.
type Kernel struct {
	*launch.Kernel

	// ModulesFD is the disk with its modules.
	ModulesFD int
	Digest    string
}

// OpenKernel opens the kernel for container images in a folder, with its initramfs and modules.
func OpenKernel(dir, accel string, files *launch.Files) (opened Kernel, err error) {
	unusable := func(err error) (Kernel, error) {
		return Kernel{}, driver.Errorf(driver.ErrRetry, "a container image needs the kernel in %s (--qemu-kernel), which \"make guest\" makes: %w", dir, err)
	}
	text, _, err := atomicfile.Read(filepath.Join(dir, guestAboutFile), maxAbout)
	if err != nil {
		return unusable(err)
	}
	var about struct {
		SHA256       string `json:"vmlinuxSHA256"`
		GuestVersion int    `json:"guestVersion"`
	}
	if err := json.Unmarshal(text, &about); err != nil || about.SHA256 == "" {
		return unusable(fmt.Errorf("%s lacks vmlinuxSHA256", guestAboutFile))
	}
	if about.GuestVersion != config.Version {
		return unusable(fmt.Errorf("guestVersion in %s is %d, want %d: it is of another Drover, so run make guest", guestAboutFile, about.GuestVersion, config.Version))
	}
	opened = Kernel{Kernel: &launch.Kernel{Cmdline: guestCmdline}, Digest: about.SHA256}
	if accel == launch.AccelTCG {
		opened.Cmdline += " no_timer_check" // an emulator may deliver timer interrupts too late for this check
	}
	for name, fd := range map[string]*int{
		guestKernelFile: &opened.FD, guestInitrdFile: &opened.InitrdFD, fmt.Sprintf(guestModulesFile, about.SHA256): &opened.ModulesFD,
	} {
		var f *os.File
		if f, err = diskimage.OpenRegular(filepath.Join(dir, name), true); err != nil {
			return unusable(err)
		}
		*fd = files.Add(f)
	}
	return opened, nil
}
