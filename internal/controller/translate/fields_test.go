// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"reflect"
	"strings"
	"testing"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
)

// withoutDrivers are the fields of a spec that no driver gets, and who acts on them.
var withoutDrivers = map[string]string{
	"driver":         "the controllers: it chooses the driver",
	"readinessProbe": "package probe of the controller",
	"restartedAt":    "package policy: it makes a restart",
	"deletionPolicy": "package policy: it makes a release in place of a deletion",
}

// TestEveryFieldIsActedOn checks that drivers get each field of a spec, so that each has to support it or refuse it by name.
func TestEveryFieldIsActedOn(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, name := range driver.SpecFields() {
		top, _, _ := strings.Cut(name, ".")
		known[top] = true
	}
	for field := range reflect.TypeFor[api.VirtualMachineSpec]().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		_, isExcused := withoutDrivers[name]
		assert.True(t, known[name] != isExcused, "spec.%s: either a field of driver.ServerSpec has its tag, or withoutDrivers names who acts on it", name)
	}
}
