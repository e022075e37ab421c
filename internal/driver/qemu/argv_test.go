// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"cloudnative.tw/drover/internal/driver/qemu/diskimage"
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
	m := machine{
		UID: "0c6f2f4a-0000-4000-8000-000000000001", ID: "0123456789abcdef", Accel: AccelTCG, CPUs: 3, MemoryBytes: 4e9,
		Root:     &drive{Path: rootDiskFile, Backing: &layer{Path: "/images/a.qcow2", Format: diskimage.Qcow2}},
		Forwards: []forward{{Protocol: "tcp", HostPort: 8080, Port: 80}, {Protocol: "udp", HostPort: 5353, Port: 53}},
	}
	args := m.arguments()
	for _, pair := range [][2]string{
		{"-uuid", string(m.UID)},
		{"-name", "drover-0123456789abcdef"},
		{"-accel", "tcg"},
		{"-smp", "3"},
		{"-m", "3814M"},
		{"-action", "shutdown=pause,panic=pause"},
		{"-netdev", "user,id=net,hostfwd=tcp::8080-:80,hostfwd=udp::5353-:53"},
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

// FuzzArguments : whatever a path looks like, it stays one text in one option.
func FuzzArguments(f *testing.F) {
	for _, path := range []string{"/images/a.img", `a,b="c"`, "x\ny", "'$(reboot)`x`", "file=/etc/shadow,readonly=off", "漢", "", "\x00", "-drive"} {
		f.Add(path)
	}
	plain := machine{Root: &drive{Path: rootDiskFile, Backing: &layer{Path: "x", Format: diskimage.Raw}}}.arguments()
	f.Fuzz(func(t *testing.T, path string) {
		path = strings.ToValidUTF8(path, "?")
		args := machine{Root: &drive{Path: rootDiskFile, Backing: &layer{Path: path, Format: diskimage.Raw}}}.arguments()
		if len(args) != len(plain) {
			t.Fatalf("%q changes the number of arguments from %d to %d", path, len(plain), len(args))
		}
		for i, arg := range args {
			if arg != plain[i] && args[i-1] != "-blockdev" {
				t.Errorf("%q changes %s from %q to %q", path, args[i-1], plain[i], arg)
			}
		}
		backing := decode(t, args, "-blockdev", "root.qcow2")["backing"].(map[string]any)
		if got := backing["file"].(map[string]any)["filename"]; got != path {
			t.Errorf("QEMU would read %q, want %q", got, path)
		}
	})
}
