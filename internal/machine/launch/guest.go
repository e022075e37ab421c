// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"

	guestconfig "cloudnative.tw/drover/internal/guest/config"
)

// Guest has the files that the machine of a container image has for the program that its kernel starts (package guest).
// The kernel's messages are in QEMU's output, and nothing is printed to the serial console.
type Guest struct {
	// ImageFD is a raw disk with the image's files, which the guest cannot write to.
	ImageFD int `json:"imageFD"`
	// ConfigFD is a file with the configuration of the program (guest/config.Config). QEMU reads it once.
	ConfigFD int `json:"configFD"`
	// ResultFD is a raw disk that gets the results of the run (guest/config.Result).
	ResultFD int `json:"resultFD"`
	// OutputFDs are files that get what the image's command prints, by package output's streams. They append.
	OutputFDs [2]int `json:"outputFDs"`
}

// Names of the disks in QEMU: of the image, and of the results.
const imageNode, resultNode = "image", "result"

// resultFunction is the address of the results' disk: another function of the agent's slot, so that it takes no slot.
const resultFunction = agentSlot + ".1"

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

// portArguments returns the devices that follow the agent's: the disk of the results, and the ports of the output. QEMU
// writes to a file whatever comes, whether another process runs or not.
func (g Guest) portArguments() []string {
	node := Object{
		"driver": formatRaw, "node-name": resultNode,
		"file": Object{"driver": "file", "filename": fdsetName(g.ResultFD)}, // its room stays taken: without discard
	}
	device := diskDevice(resultNode, Object{"serial": guestconfig.ResultSerial, "bus": "pcie.0", "addr": resultFunction})
	args := []string{"-blockdev", node.Text(), "-device", device}
	for stream, port := range [...]string{guestconfig.StdoutPort, guestconfig.StderrPort} {
		name := fmt.Sprint("output", stream)
		args = append(args, "-chardev", fmt.Sprintf("file,id=%s,path=%s,append=on", name, fdsetName(g.OutputFDs[stream])))
		args = append(args, portArguments(name, port)...)
	}
	return args
}
