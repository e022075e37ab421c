// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
)

// TestRefusedVolumes checks what no pod can have.
func TestRefusedVolumes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*driver.ServerSpec)
		kind   error
		says   string
	}{
		"image":     {func(s *driver.ServerSpec) { s.Volumes[0].Image = &driver.Image{Source: "x/y"} }, driver.ErrInvalid, `spec.volumes[data].source.image.source is "x/y"`},
		"ephemeral": {func(s *driver.ServerSpec) { s.Ephemeral = true }, driver.ErrUnsupported, "spec.volumes: "},
		"too many": {func(s *driver.ServerSpec) {
			for n := range maxClaims {
				s.Objects = append(s.Objects, driver.Object{Kind: KindClaim, Name: fmt.Sprint(n), UID: types.UID("x")})
			}
		}, driver.ErrInvalid, "has 62 disks, and can have 60"},
		"as many as possible": {func(s *driver.ServerSpec) {
			for n := range maxClaims {
				s.Objects = append(s.Objects, driver.Object{Kind: KindClaim, Name: fmt.Sprint(n), UID: types.UID("x")})
			}
			s.Objects[0].Name, s.Objects[1].Name = BaseName("", ""), ClaimName(BaseName("", ""), "data")
		}, nil, "<nil>"},
		"name": {func(s *driver.ServerSpec) { s.Name = strings.Repeat("a", 64) }, driver.ErrInvalid, "of 64 characters"},
	} {
		spec := driver.ServerSpec{Power: driver.PowerOn, Image: driver.Image{Source: "oci://x/y"}, Volumes: []driver.Volume{{Name: "data", SizeBytes: 1 << 20}}}
		c.change(&spec)
		if err := (&Template{}).CheckSpec(spec); !errors.Is(err, c.kind) || !strings.Contains(fmt.Sprint(err), c.says) {
			t.Errorf("%s: %v, want %v with %q", name, err, c.kind, c.says)
		}
	}
}
