// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package description

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

const valid = `
version: 1
uuid: 6ba7b810-9dad-11d1-80b4-00c04fd430c8
name: web
cpus: 2
memoryBytes: 268435456
rootDisk: {folder: /disk, image: /image/disk.img}
volumes: [{name: data, folder: /data, sizeBytes: 1048576, readOnly: true}]
control: {port: 8443, folder: /tls}
forwards: [{port: 80}]
`

var digits = strings.Repeat("0", 64)

func TestRead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ from, to, says string }{
		"valid":              {"", "", ""},
		"version":            {"version: 1", "version: 2", "version is 2: this program supports version 1"},
		"unknown field":      {"cpus: 2", "cpu: 2", `unknown field "cpu"`},
		"name":               {"name: web", "name: We,b", `name is "We,b"`},
		"UUID":               {"6ba7b810", "x", "uuid is"},
		"memory":             {"268435456", "1000", "memoryBytes is 1000: it must be from"},
		"no disk":            {"rootDisk: {folder: /disk, image: /image/disk.img}", "", "rootDisk and kernel are missing"},
		"size":               {", image: /image/disk.img", "", "rootDisk.sizeBytes is missing"},
		"relative image":     {"/image/disk.img", "disk.img", `rootDisk.image is "disk.img": it must be an absolute path`},
		"no folder":          {"folder: /disk, ", "", `rootDisk.folder is "": it must be an absolute path`},
		"port":               {"port: 80", "port: 70000", "ort is 70000: it must be from 1 to 65535"},
		"protocol":           {"port: 80", "port: 80, protocol: sctp", `protocol is "sctp"`},
		"accelerator":        {"cpus: 2", "cpus: 2\naccelerator: xen", `accelerator is "xen"`},
		"grace":              {"cpus: 2", "cpus: 2\ngracePeriodSeconds: -1", "gracePeriodSeconds is -1: it must be from 1 to"},
		"volume's name":      {"name: data", "name: Data", `volumes[0].name is "Data": it must be unique`},
		"long volume's name": {"name: data", "name: a23456789012345678901", "at most 20 lowercase letters"},
		"volume's size":      {"sizeBytes: 1048576, ", "", "volumes[0].sizeBytes is missing"},
		"same folder":        {"/data", "/disk/.", `volumes[0].folder is "/disk/.": rootDisk has the same folder`},
		"same name":          {"volumes: [", "volumes: [{name: data, folder: /more, sizeBytes: 512}, ", `volumes[1].name is "data": it must be unique`},
		"URL":                {"/image/disk.img", "'https://u:secret@x/?secret', checksum: 'sha256:" + digits + "'", ""},
		"URL of a file":      {"/image/disk.img", "file:///etc/secret", "rootDisk.image is a URL that is not supported"},
		"URL without a host": {"/image/disk.img", "'http:///secret'", "rootDisk.image is a URL that is not supported"},
		"no checksum":        {"/image/disk.img", "https://x/secret", `rootDisk.checksum is missing: an image that is downloaded from a URL needs`},
		"checksum of a file": {"/image/disk.img", "/image/disk.img, checksum: 'sha256:" + digits + "'", ""},
		"wrong checksum":     {"/image/disk.img", "/image/disk.img, checksum: md5", `rootDisk.checksum is "md5": it must be`},
		"checksum of none":   {"image: /image/disk.img", "sizeBytes: 512, checksum: 'sha256:" + digits + "'", "rootDisk.checksum is set: a disk without an image must not have one"},
		"control's port":     {"port: 8443", "port: 0", "control.port is 0: it must be from 1"},
		"control forwarded":  {"port: 8443", "port: 80", "control.port is 80: a forward has the same host port"},
		"control's folder":   {"/tls", "tls", `control.folder is "tls": it must be an absolute path`},
		"image's limit":      {"cpus: 2", "cpus: 2\nimageMaxBytes: -1", "imageMaxBytes is -1"},
		"kernel not by path": {"cpus: 2", "cpus: 2\nkernel: {file: vmlinuz}", `kernel.file is "vmlinuz"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "machine.yaml")
			assert.NoError(t, os.WriteFile(path, []byte(strings.Replace(valid, c.from, c.to, 1)), 0o600))
			d, err := Read(path)
			assert.True(t, err == nil || !strings.Contains(err.Error(), "secret"), "the error has a secret: %v", err)
			switch {
			case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
				t.Errorf("the error is %v, want %q in it", err, c.says)
			case c.says == "" && (err != nil || d.Forwards[0] != Forward{"tcp", 80, 80} || d.GracePeriodSeconds != 30 || d.Volumes[0].Folder != "/data" || d.Accelerator != "auto"):
				t.Errorf("got %+v, %v", d, err)
			}
		})
	}
}

// TestExamples checks that the descriptions in examples/ are read.
func TestExamples(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../../examples/drover-machine/*.yaml")
	assert.Require(t, err == nil && len(files) >= 2, "the examples are %q, %v", files, err)
	for _, file := range files {
		content := framework.ReadFile(t, file)
		first, _, _ := strings.Cut(content, "\n---\n")
		var object struct{ Data, StringData map[string]string }
		path := filepath.Join(t.TempDir(), "machine.yaml")
		assert.NoError(t, yaml.Unmarshal([]byte(first), &object))
		assert.NoError(t, os.WriteFile(path, []byte(object.Data["machine.yaml"]+object.StringData["machine.yaml"]), 0o600))
		assert.ErrorIs(t, file, assert.ErrorOf(Read(path)), nil)
	}
}
