// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/image/diskimage"
)

// machine is all that the command line depends on. Paths are absolute, or relative to the
// server's directory.
type machine struct {
	UID         types.UID
	ID          string
	Type        string // of the machine, with its version
	Accel       string
	CPUs        int64
	MemoryBytes int64
	Root        *drive
	Volumes     []volume
	Kernel      *kernel
	Forwards    []forward
	// Files are the files that the drives and the kernel name.
	Files *passed
}

// drive is a disk of a machine: a qcow2 file, on top of an image if it has one.
type drive struct {
	Path     string
	Backing  *layer
	ReadOnly bool
}

// volume is a further disk; the guest sees its name as the serial number.
type volume struct {
	Name string
	drive
}

// rootNode is the name of the root disk in QEMU.
const rootNode = "root"

func volumeNode(name string) string { return "volume-" + name }

// seedSerial cannot be a volume's name, which has no capital letters. A guest finds the
// disk by its label.
const seedSerial = seedLabel

func seedArguments() []string {
	node := object{
		"driver": diskimage.Raw, "node-name": "seed", "read-only": true,
		"file": object{"driver": "file", "filename": seedFile, "read-only": true},
	}
	return []string{"-blockdev", node.text(), "-device", diskDevice("seed", object{"serial": seedSerial})}
}

// kernel is booted in place of the one on the disk.
type kernel struct {
	Path, Initrd, Cmdline string
}

type layer struct {
	Path, Format string
}

// forward forwards a port of the host to one of the guest.
type forward struct {
	Protocol string `json:"protocol"` // tcp or udp
	// HostIP is the host's address, empty for all IPv4 addresses.
	HostIP   string `json:"hostIP,omitempty"`
	HostPort int32  `json:"hostPort"`
	Port     int32  `json:"port"`
	// Chosen is set where the spec has no host port.
	Chosen bool `json:"chosen,omitempty"`
}

// arguments returns the command line. Text that a user chose is in JSON or in an argument
// of its own, never in an option with commas.
func (m machine) arguments() []string {
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none",
		"-name", "drover-" + m.ID,
		"-uuid", string(m.UID),
		"-machine", m.Type + ",usb=off,vmport=off,dump-guest-core=off",
		"-accel", m.Accel,
		"-cpu", cpuModel(m.Accel),
		"-smp", strconv.FormatInt(m.CPUs, 10),
		"-m", strconv.FormatInt(m.MemoryBytes/(1<<20), 10) + "M",
		"-S", "-action", "shutdown=pause,panic=pause",
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-chardev", "socket,id=ctl,path=" + ctlSocket + ",server=on,wait=off",
		"-mon", "chardev=ctl,mode=control",
		"-chardev", "socket,id=events,path=" + eventsSocket + ",server=on,wait=off",
		"-mon", "chardev=events,mode=control",
		"-chardev", "socket,id=serial,path=" + serialSocket + ",server=on,wait=off,logfile=" + serialLogFile + ",logappend=on",
		"-serial", "chardev:serial",
		"-device", object{"driver": "pvpanic"}.text(),
		"-device", object{"driver": "virtio-rng-pci"}.text(),
	}
	args = append(args, m.network()...)
	args = append(args, m.Files.arguments()...)
	if m.Root != nil {
		args = append(args, m.Root.arguments(rootNode, object{"bootindex": 1})...)
	}
	for _, v := range m.Volumes {
		args = append(args, v.arguments(volumeNode(v.Name), object{"serial": v.Name})...)
	}
	args = append(args, seedArguments()...)
	if m.Kernel != nil {
		args = append(args, m.Kernel.arguments()...)
	}
	return append(args, "-device", balloon.text())
}

func cpuModel(accel string) string {
	if accel == AccelKVM {
		return "host"
	}
	return "max"
}

func (k kernel) arguments() []string {
	args := []string{"-kernel", k.Path, "-append", k.Cmdline}
	if k.Initrd != "" {
		args = append(args, "-initrd", k.Initrd)
	}
	return args
}

// object is a JSON object; its text has the keys in order.
type object map[string]any

func (o object) text() string {
	text, err := json.Marshal(o)
	if err != nil {
		panic(err) // strings and numbers can always be marshaled
	}
	return string(text)
}

// network returns the arguments of QEMU's user network. The guest reaches out through the
// host, and is reached only by the forwarded ports. It does not boot from the network.
func (m machine) network() []string {
	var netdev strings.Builder
	netdev.WriteString("user,id=net")
	for _, f := range m.Forwards {
		netdev.WriteString(",hostfwd=" + f.rule())
	}
	return []string{
		"-netdev", netdev.String(),
		"-device", object{"driver": "virtio-net-pci", "netdev": "net", "mac": macOf(m.UID), "romfile": ""}.text(),
	}
}

// macOf derives a MAC address from a UID, with the prefix of QEMU's addresses.
func macOf(uid types.UID) string {
	sum := sha256.Sum256([]byte(uid))
	return fmt.Sprintf("52:54:%02x:%02x:%02x:%02x", sum[0], sum[1], sum[2], sum[3])
}

// arguments returns the arguments of a disk. Its backing file is named in full, so that
// QEMU follows no pointer in a file.
func (d drive) arguments(name string, device object) []string {
	node := object{
		"driver": diskimage.Qcow2, "node-name": name, "discard": "unmap",
		"file":    object{"driver": "file", "filename": d.Path, "discard": "unmap"},
		"backing": nil,
	}
	if d.ReadOnly {
		node["read-only"] = true
	}
	if d.Backing != nil {
		node["backing"] = d.Backing.node()
	}
	return []string{"-blockdev", node.text(), "-device", diskDevice(name, device)}
}

// diskDevice returns the device that the guest sees of a disk. An error of the host's
// disk pauses the guest. A guest that got the error would make its file system read-only
// and lose what it could not write, although the error may be over soon, as that of a
// quota or of a network.
func diskDevice(name string, device object) string {
	device["driver"], device["drive"], device["id"] = "virtio-blk-pci", name, "disk-"+name
	device["werror"], device["rerror"] = "stop", "stop"
	return device.text()
}

func (l layer) node() object {
	node := object{
		"driver": l.Format, "read-only": true,
		"file": object{"driver": "file", "filename": l.Path, "read-only": true},
	}
	if l.Format == diskimage.Qcow2 {
		node["backing"] = nil
	}
	return node
}
