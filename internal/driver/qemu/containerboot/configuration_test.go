// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package containerboot

import (
	"io"
	"net/netip"
	"reflect"
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/guest/config"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/test/assert"
)

// TestVolumes checks that the guest is told of volumes, and that neither a bad VOLUME nor the mountPath of a disk image's
// volume is taken.
func TestVolumes(t *testing.T) {
	t.Parallel()
	spec := driver.ServerSpec{Name: "vm", MemoryBytes: 1 << 30, Volumes: []driver.Volume{{Name: "a", MountPath: "/srv/a"}, {Name: "b", ReadOnly: true}}}
	network := control.NetworkConfig{Address: netip.MustParsePrefix("10.0.2.15/24"), Domain: "example.org"}
	runConfig := image.RunConfig{Entrypoint: []string{"true"}, Volumes: []string{"/srv/../data/", "/kept"}}
	f, err := Configure(spec, runConfig, network, make([]byte, config.NonceBytes))
	assert.NoError(t, err)
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.NewSectionReader(f, 0, config.MaxBytes))
	assert.NoError(t, err)
	c, err := config.Decode(text)
	assert.NoError(t, err)
	want := []config.Volume{{Serial: "a", Path: "/srv/a"}, {Serial: "b", ReadOnly: true}}
	assert.True(t, reflect.DeepEqual(c.Volumes, want) && reflect.DeepEqual(c.ImageVolumes, []string{"/data", "/kept"}), "the volumes are %+v and %q", c.Volumes, c.ImageVolumes)
	for path, text := range map[string]string{"data": `a VOLUME of the image is "data"`, "/data/..": `a VOLUME of the image is "/"`, "/proc/x": `a VOLUME of the image is "/proc/x"`} {
		runConfig.Volumes = []string{path}
		_, err := Configure(spec, runConfig, network, make([]byte, config.NonceBytes))
		assert.ErrorIs(t, path, err, driver.ErrInvalid, "spec.image cannot be run", text)
	}
	assert.NoError(t, CheckFields(spec, true))
	assert.ErrorIs(t, "mountPath and a disk image", CheckFields(spec, false), driver.ErrUnsupported, "spec.volumes[].mountPath: the guest of a disk image mounts its volumes itself")
}
