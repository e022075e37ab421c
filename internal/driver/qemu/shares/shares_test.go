// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package shares

import (
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
)

const gib = 1 << 30

// claim returns a claim in GiB and CPUs.
func claim(uid, namespace string, memory, cpus, disk int64) Claim {
	return Claim{UID: types.UID(uid), Namespace: namespace, Amounts: Amounts{memory * gib, cpus * 1000, disk * gib}}
}

// TestAdmit checks what a machine is admitted to beside others, on a host with 16 GiB of memory, 40 CPUs and a disk of 1 TiB.
func TestAdmit(t *testing.T) {
	t.Parallel()
	whole := Amounts{16 * gib, 40_000, 1000 * gib}
	half := [3]string{"50%", "50%", "50%"}
	others := []Claim{claim("1", "a", 4, 10, 300), claim("2", "a", 0, 0, 100), claim("3", "b", 8, 20, 500)}
	for name, c := range map[string]struct {
		flags [3]string
		whole Amounts
		want  Claim
		says  string
	}{
		"all of the share":       {half, whole, claim("4", "a", 4, 10, 100), ""},
		"another namespace":      {half, whole, claim("4", "c", 8, 20, 500), ""},
		"memory":                 {half, whole, claim("4", "a", 5, 1, 1), "spec.resource.memory: needed 5Gi with QEMU, its supervisor and files; the namespace a has 4294M in use of its share of 8589M (--qemu-namespace-memory is 50%)"},
		"CPUs":                   {half, whole, claim("4", "a", 1, 11, 1), "spec.resource.cpu: needed 11; the namespace a has 10 in use of its share of 20 (--qemu-namespace-cpus is 50%)"},
		"disk":                   {half, whole, claim("4", "a", 1, 1, 101), "spec.resource.rootDisk and spec.volumes: needed 101Gi; the namespace a has 429496M in use of its share of 536870M (--qemu-namespace-disk is 50%)"},
		"more than the share":    {half, whole, claim("4", "c", 9, 1, 1), "needed 9Gi with QEMU, its supervisor and files; the namespace c has 0M in use of its share of 8589M"},
		"itself does not count":  {half, whole, claim("1", "a", 8, 20, 400), ""},
		"a disk alone":           {[3]string{"1Gi", "1", "50%"}, whole, claim("1", "a", 0, 0, 400), ""},
		"nothing more of a disk": {[3]string{"50%", "50%", "1Gi"}, whole, claim("1", "a", 4, 10, 0), ""},
		"an amount":              {[3]string{"5Gi", "", ""}, whole, claim("4", "a", 2, 0, 0), "4294M in use of its share of 5368M (--qemu-namespace-memory is 5Gi)"},
		"a fraction of a CPU":    {[3]string{"", "10500m", ""}, whole, claim("4", "a", 0, 1, 0), "needed 1; the namespace a has 10 in use of its share of 10500m"},
		"without limits":         {[3]string{"100%", "0", ""}, whole, claim("4", "a", 900, 900, 9000), ""},
		"an unknown host":        {half, Amounts{}, claim("4", "a", 900, 900, 9000), ""},
		"an amount, and unknown": {[3]string{"5Gi", "", ""}, Amounts{}, claim("4", "a", 2, 0, 0), "--qemu-namespace-memory is 5Gi"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limits, err := ParseLimits(c.flags[0], c.flags[1], c.flags[2])
			assert.NoError(t, err)
			a := Account{Limits: limits, Find: func() (Amounts, []Claim, error) { return c.whole, others, nil }}
			err = a.Take(c.want)
			assert.ErrorSays(t, "Take", err, c.says)
			assert.True(t, err == nil || errors.Is(err, driver.ErrExhausted), "the kind of %v", err)
		})
	}
}

// TestPending checks that what was admitted counts before the machine has it, once, and until it is released.
func TestPending(t *testing.T) {
	t.Parallel()
	limits, err := ParseLimits("10Gi", "", "10Gi")
	assert.NoError(t, err)
	var machines []Claim
	a := Account{Limits: limits, Find: func() (Amounts, []Claim, error) { return Amounts{}, machines, nil }}
	assert.NoError(t, a.Take(claim("1", "a", 0, 0, 6)))
	assert.NoError(t, a.Take(claim("1", "a", 6, 1, 0)))
	assert.ErrorSays(t, "beside its disk", a.Take(claim("2", "a", 0, 0, 5)), "has 6442M in use")
	assert.ErrorSays(t, "beside its memory", a.Take(claim("2", "a", 5, 0, 0)), "has 6442M in use")
	machines = []Claim{claim("1", "a", 6, 1, 6)}
	assert.NoError(t, a.Take(claim("2", "a", 4, 0, 4)))
	a.Release("2")
	a.Release("1")
	assert.NoError(t, a.Take(claim("3", "a", 4, 0, 4)))
	a.Release("3")
	machines = nil
	assert.NoError(t, a.Take(claim("4", "a", 10, 0, 10)))
	unavailable := errors.New("the folder is gone")
	a.Find = func() (Amounts, []Claim, error) { return Amounts{}, nil, unavailable }
	assert.ErrorIs(t, "a folder that cannot be read", a.Take(claim("5", "a", 1, 0, 0)), unavailable)
}

func TestParseLimits(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "0", "0%", "100%"} {
		limits, err := ParseLimits(text, text, text)
		assert.True(t, err == nil && limits == Limits{}, "%q is %+v, %v", text, limits, err)
	}
	for _, text := range []string{"-1", "101%", "-5%", "50 %", "half", "1.5%", "%"} {
		_, err := ParseLimits(text, text, text)
		assert.ErrorSays(t, text, err, "--qemu-namespace-memory is \""+text+"\": it must be a part of the host from 1% to 100%, or an amount such as 8Gi; 0 and 100% mean no limit")
		assert.ErrorSays(t, text, err, "--qemu-namespace-cpus is")
		assert.ErrorSays(t, text, err, "--qemu-namespace-disk is")
	}
}
