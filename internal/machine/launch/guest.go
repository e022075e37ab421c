// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"

	guestconfig "cloudnative.tw/drover/internal/guest/config"
)

// Guest has the files for a container image's machine, whose kernel starts Drover's program (package guest). The kernel
// prints its messages to QEMU's output. The serial console stays empty.
type Guest struct {
	// ImageFD is a raw disk with the image's files, which the guest cannot write to.
	ImageFD int `json:"imageFD"`
	// ConfigFD is a file with the configuration of the program (guest/config.Config). QEMU reads it once.
	ConfigFD int `json:"configFD"`
	// ModulesFD is a raw disk with the kernel's modules, which the guest cannot write to; 0 for none, as in descriptions of
	// earlier versions.
	ModulesFD int `json:"modulesFD,omitempty"`
	// FilesFD is a raw disk in memory with the content of folders (guest/mounts), 0 for none.
	FilesFD int `json:"filesFD,omitempty"`
	// ResultFD is a raw disk that receives the result of the run (guest/config.Result).
	ResultFD int `json:"resultFD"`
	// OutputFDs are files for the output of the image's command, by stream of package output, opened for appending.
	OutputFDs [2]int `json:"outputFDs"`
}

// QEMU node names of the disks with the image, with the kernel's modules, with files, and with the result.
const imageNode, modulesNode, filesNode, resultNode = "image", "modules", "files", "result"

// PCI addresses of disks: functions of the agent's slot, so that they need no other slot.
const resultFunction, modulesFunction, filesFunction = agentSlot + ".1", agentSlot + ".2", agentSlot + ".3"

// kernelLogArguments connects the serial port, to which the guest's kernel prints, to QEMU's standard output.
func kernelLogArguments() []string {
	return []string{"-chardev", "stdio,id=kernel,signal=off", "-serial", "chardev:kernel"}
}

// diskArguments returns the arguments for the image's disk and for the configuration.
func (g Guest) diskArguments() []string {
	image := Drive{FD: g.ImageFD, Format: formatRaw, ReadOnly: true}
	return append(image.arguments(imageNode, Object{"serial": guestconfig.RootSerial}),
		"-fw_cfg", fmt.Sprintf("name=%s,file=%s", guestconfig.File, reopenName(g.ConfigFD)))
}

// modulesArguments returns the arguments for the disk with the kernel's modules. They must follow the agent's device.
func (g Guest) modulesArguments() []string {
	if g.ModulesFD == 0 {
		return nil
	}
	modules := Drive{FD: g.ModulesFD, Format: formatRaw, ReadOnly: true}
	return modules.arguments(modulesNode, Object{"serial": guestconfig.ModulesSerial, "bus": "pcie.0", "addr": modulesFunction})
}

// filesArguments returns the arguments for the disk with the content of folders. They must follow the agent's device.
func (g Guest) filesArguments() []string {
	if g.FilesFD == 0 {
		return nil
	}
	disk := Drive{FD: g.FilesFD, Format: formatRaw, ReadOnly: true}
	return disk.arguments(filesNode, Object{"serial": guestconfig.FilesSerial, "bus": "pcie.0", "addr": filesFunction})
}

// portArguments returns the arguments for the result's disk and for the ports of the output. They must follow the agent's
// device. QEMU itself writes the output to files, so no output is lost while no supervisor runs.
func (g Guest) portArguments() []string {
	node := Object{
		"driver": formatRaw, "node-name": resultNode,
		"file": Object{"driver": "file", "filename": fdsetName(g.ResultFD)}, // without discard, so that its space stays allocated
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
