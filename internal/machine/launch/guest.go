// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"slices"

	guestconfig "cloudnative.tw/drover/internal/guest/config"
)

// Guest is what the machine of a container image has for the program that its kernel starts (package guest). The output
// of the image's command takes the place of the serial console. What the kernel prints is in QEMU's own output.
type Guest struct {
	// ImageFD is a raw disk with the image's files, which the guest cannot write to.
	ImageFD int `json:"imageFD"`
	// ConfigFD is a file with the configuration of the program (guest/config.Config). QEMU reads it once.
	ConfigFD int `json:"configFD"`
	// ResultFD gets the results of the run (guest/config.Result). It is open for appending.
	ResultFD int `json:"resultFD"`
}

// imageNode is the name of the image's disk in QEMU.
const imageNode = "image"

// kernelLogArguments returns the serial port to which the guest's kernel prints.
func kernelLogArguments() []string {
	return []string{"-chardev", "stdio,id=kernel,signal=off", "-serial", "chardev:kernel"}
}

// diskArguments returns the disk with the image, and the configuration.
func (g Guest) diskArguments() []string {
	image := Drive{FD: g.ImageFD, Format: formatRaw, ReadOnly: true}
	return append(image.arguments(imageNode, Object{"serial": guestconfig.RootSerial}),
		"-fw_cfg", fmt.Sprintf("name=%s,file=%s", guestconfig.File, reopenName(g.ConfigFD)))
}

// portArguments returns the ports of the result and of the output.
func (g Guest) portArguments() []string {
	return slices.Concat(
		[]string{"-chardev", fmt.Sprintf("file,id=result,path=%s,append=on", fdsetName(g.ResultFD))},
		portArguments("result", guestconfig.ResultPort), portArguments(serialChardev, guestconfig.LogPort))
}
