// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

type pair struct{ has, wants int }

var someFields = Fields[pair]{
	{Name: "action", Support: AppliedLive},
	{Name: "resource", Support: AppliedAtRestart, Parts: []string{"cpu"}, Differs: func(p pair) bool { return p.has != p.wants }},
	{Name: "image.kernel", Support: Unsupported, Hint: "there is no kernel to boot; leave it out"},
	{Name: "volumes.source.image.kernel", Support: Unsupported, Hint: "a volume is not booted; leave the kernel out"},
	{Name: "ports", Support: Unsupported, Hint: "there is no network; leave it out"},
	{Name: "userData", Support: Unsupported, Hint: "there is no cloud-init; leave it out"},
}

func TestFieldsSupport(t *testing.T) {
	got := someFields.Support()
	for name, want := range map[string]Support{
		"action": AppliedLive, "resource.cpu": AppliedAtRestart, "resource.memory": "", "image.source": "",
		"image.kernel.initrd": Unsupported, "ports.name": Unsupported, "volumes.name": "", "volumes.source.image.kernel.source": Unsupported,
	} {
		assert.Equal(t, name, got[name], want)
	}
}

func TestFieldsCheckSupported(t *testing.T) {
	tests := map[string]struct {
		spec ServerSpec
		want string
	}{
		"none set":            {ServerSpec{CPUMilli: 1000, Image: Image{Source: "x"}, Ports: []Port{}, Volumes: []Volume{{Name: "a", Image: &Image{}}}}, ""},
		"a text":              {ServerSpec{UserData: NewSecret("x")}, "spec.userData: there is no cloud-init"},
		"a pointer":           {ServerSpec{Image: Image{Kernel: &Kernel{Initrd: "x"}}}, "spec.image.kernel: there is no kernel"},
		"an empty kernel":     {ServerSpec{Image: Image{Kernel: &Kernel{}}}, "spec.image.kernel: there is no kernel"},
		"a list":              {ServerSpec{Ports: []Port{{Port: 80}}}, "spec.ports: there is no network"},
		"a pointer in a list": {ServerSpec{Volumes: []Volume{{Name: "a", Image: &Image{Source: "x", Kernel: &Kernel{Source: "x"}}}}}, "spec.volumes.source.image.kernel: a volume"},
		"several, too":        {ServerSpec{UserData: NewSecret("x"), Ports: []Port{{Name: "a"}}}, "spec.ports"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := someFields.CheckSupported(tc.spec)
			assert.True(t, (err != nil) == (tc.want != "") && (err == nil || (errors.Is(err, ErrUnsupported) && strings.Contains(err.Error(), tc.want))),
				"error %v, want %q", err, tc.want)
		})
	}
}

func TestFieldsPending(t *testing.T) {
	got := someFields.Pending(pair{1, 2})
	assert.True(t, slices.Equal(got, []string{"resource"}), "pending is %v after a change", got)
	got = someFields.Pending(pair{1, 1})
	assert.True(t, len(got) == 0, "pending is %v without a change", got)
}

// TestSpecFieldsAreTagged checks that each field names the one of the spec that it is
// from: names of Go would enter messages for users.
func TestSpecFieldsAreTagged(t *testing.T) {
	for _, name := range SpecFields() {
		for part := range strings.SplitSeq(name, ".") {
			assert.True(t, part[0] >= 'a' && part[0] <= 'z', "the field %s lacks a tag \"spec\"", name)
		}
	}
}
