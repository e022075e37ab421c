// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"testing"

	"cloudnative.tw/drover/cmd/kubectl-vm/kittest"
	"cloudnative.tw/drover/test/assert"
)

// TestPrintedCommandsNameThePlace checks that commands for users to paste lead where this one led.
func TestPrintedCommandsNameThePlace(t *testing.T) {
	t.Parallel()
	o, out := kittest.NewOptions()
	cmd := NewCommand(o)
	cmd.SetArgs([]string{"options", "-n", "blue", "--context", "my cluster"})
	assert.NoError(t, cmd.Execute())
	const place = " --context 'my cluster' --namespace blue"
	assert.True(t, o.Program == "kubectl vm"+place && o.Kubectl == "kubectl"+place, "the printed commands begin with %q and %q\n%s", o.Program, o.Kubectl, out)
}
