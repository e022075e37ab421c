// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// decode returns the JSON value of the option that follows a flag and mentions
// a text.
func decode(t *testing.T, args []string, flag, mentions string) map[string]any {
	t.Helper()
	for i, arg := range args {
		if i == 0 || args[i-1] != flag || !strings.Contains(arg, mentions) {
			continue
		}
		var value map[string]any
		if err := json.Unmarshal([]byte(arg), &value); err != nil {
			t.Fatalf("%s is followed by %q: %v", flag, arg, err)
		}
		return value
	}
	t.Fatalf("there is no %s with %s in %q", flag, mentions, args)
	return nil
}

func TestArguments(t *testing.T) {
	t.Parallel()
	m := Config{
		UUID: "0c6f2f4a-0000-4000-8000-000000000001", ID: "0123456789abcdef", Type: "pc-q35-7.2", Accel: AccelTCG, CPUs: 3, MemoryBytes: 4e9,
		Root:     &Drive{Path: "root.qcow2", Backing: &Layer{Path: "/images/a.qcow2", Format: formatQcow2}},
		Forwards: []Forward{{Protocol: "tcp", HostPort: 8080, Port: 80}, {Protocol: "udp", HostIP: "127.0.0.1", HostPort: 5353, Port: 53}},
	}
	args := m.arguments()
	for _, pair := range [][2]string{
		{"-uuid", m.UUID},
		{"-name", "drover-0123456789abcdef"},
		{"-accel", "tcg"},
		{"-smp", "3"},
		{"-m", "3814M"},
		{"-action", "shutdown=pause,panic=pause"},
		{"-netdev", "user,id=net,hostfwd=tcp::8080-:80,hostfwd=udp:127.0.0.1:5353-:53"},
		{"-machine", "pc-q35-7.2,usb=off,vmport=off,dump-guest-core=off"},
	} {
		if i := slices.Index(args, pair[0]); i < 0 || args[i+1] != pair[1] {
			t.Errorf("there is no %s %s in %q", pair[0], pair[1], args)
		}
	}
	if sandbox := args[slices.Index(args, "-sandbox")+1]; !strings.HasPrefix(sandbox, "on,") {
		t.Errorf("the sandbox is %q", sandbox)
	}
	backing := decode(t, args, "-blockdev", "root.qcow2")["backing"].(map[string]any)
	if next, named := backing["backing"]; !named || next != nil {
		t.Errorf("QEMU would follow the image's own pointer: %v", backing)
	}
	if mac := decode(t, args, "-device", "virtio-net")["mac"].(string); !strings.HasPrefix(mac, "52:54:") || len(mac) != 17 {
		t.Errorf("the address is %q", mac)
	}
}

// TestDisksPause checks that an error of any disk, including the seed's, pauses the
// guest.
func TestDisksPause(t *testing.T) {
	t.Parallel()
	disks := 0
	for _, device := range values(t, plainTexts.arguments(), "-device") {
		if device["driver"] != "virtio-blk-pci" {
			continue
		}
		disks++
		if device["werror"] != "stop" || device["rerror"] != "stop" {
			t.Errorf("a disk is %v", device)
		}
	}
	if disks != 3 {
		t.Errorf("there are %d disks", disks)
	}
}

// TestSeedSerial checks that cloud-init's disk has the serial number that is reserved for it.
func TestSeedSerial(t *testing.T) {
	t.Parallel()
	if serial := decode(t, seedArguments("seed"), "-device", "virtio-blk")["serial"]; serial != SeedSerial {
		t.Errorf("the serial number is %v", serial)
	}
}

func volumePath(name string) string { return "volume-" + name + ".qcow2" }

// texts are the texts of users that are on the command line.
type texts struct {
	image, kernel, initrd, cmdline, volume string
	hostPort, port                         int32
}

func (x texts) arguments() []string {
	return Config{
		Root:     &Drive{Path: "root.qcow2", Backing: &Layer{Path: x.image, Format: formatRaw}},
		Volumes:  []Volume{{x.volume, Drive{Path: volumePath(x.volume)}}},
		Kernel:   &Kernel{Path: x.kernel, Initrd: x.initrd, Cmdline: x.cmdline},
		Forwards: []Forward{{Protocol: "tcp", HostPort: x.hostPort, Port: x.port}, {Protocol: "udp", HostPort: x.port, Port: x.hostPort}},
		Seed:     "seed",
	}.arguments()
}

var plainTexts = texts{"x", "x", "x", "x", "x", 1, 1}

// FuzzArguments checks that each text of a user, whatever it looks like, stays one text
// in one place.
func FuzzArguments(f *testing.F) {
	for _, text := range []string{"/images/a.img", `a,b="c"`, "x\ny", "'$(reboot)`x`", "file=/etc/shadow,readonly=off", "漢", "", "\x00", "-drive", ",hostfwd=tcp::22-:22"} {
		f.Add(text, text, text, text, text, int32(8080), int32(80))
	}
	plain := plainTexts.arguments()
	f.Fuzz(func(t *testing.T, image, kernel, initrd, cmdline, volume string, hostPort, port int32) {
		x := texts{strings.ToValidUTF8(image, "?"), kernel, "/" + initrd, cmdline, strings.ToValidUTF8(volume, "?"), hostPort, port}
		args := x.arguments()
		if len(args) != len(plain) {
			t.Fatalf("%+v changes the number of arguments from %d to %d", x, len(plain), len(args))
		}
		whole := map[string]string{"-kernel": x.kernel, "-initrd": x.initrd, "-append": x.cmdline}
		for i, arg := range args {
			if arg == plain[i] {
				continue
			}
			switch flag := plain[i-1]; flag {
			case "-blockdev", "-device", "-netdev":
			default:
				if want, may := whole[flag]; !may || arg != want {
					t.Errorf("%+v changes %s from %q to %q", x, flag, plain[i], arg)
				}
			}
		}
		x.check(t, args)
	})
}

var netdevPattern = regexp.MustCompile(`^user,id=net,hostfwd=tcp::-?\d+-:-?\d+,hostfwd=udp::-?\d+-:-?\d+$`)

// check checks the options that hold the texts among other things.
func (x texts) check(t *testing.T, args []string) {
	t.Helper()
	disks, devices := values(t, args, "-blockdev"), values(t, args, "-device")
	backing := disks[0]["backing"].(map[string]any)["file"].(map[string]any)
	if backing["filename"] != x.image || len(backing) != 3 {
		t.Errorf("QEMU would read %v, want %q", backing, x.image)
	}
	if own := disks[1]["file"].(map[string]any); own["filename"] != volumePath(x.volume) || disks[1]["node-name"] != VolumeNode(x.volume) {
		t.Errorf("the volume %q is %v", x.volume, disks[1])
	}
	i := slices.IndexFunc(devices, func(d map[string]any) bool { return d["drive"] == VolumeNode(x.volume) })
	if i < 0 || devices[i]["serial"] != x.volume || len(devices[i]) != 6 {
		t.Errorf("the volume %q is none of the devices %v", x.volume, devices)
	}
	if netdev := args[slices.Index(plainTexts.arguments(), "-netdev")+1]; !netdevPattern.MatchString(netdev) {
		t.Errorf("the network is %q", netdev)
	}
}

// values returns the JSON values of a flag, in order.
func values(t *testing.T, args []string, flag string) []map[string]any {
	t.Helper()
	var all []map[string]any
	for i, arg := range plainTexts.arguments() {
		if arg != flag {
			continue
		}
		var value map[string]any
		if err := json.Unmarshal([]byte(args[i+1]), &value); err != nil {
			t.Fatalf("%s is followed by %q: %v", flag, args[i+1], err)
		}
		all = append(all, value)
	}
	return all
}
