// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apply "cloudnative.tw/drover/client/applyconfiguration/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
)

// TestFractionOfACPU checks that a manifest has a fraction as the API server takes it, which refuses the number
// 1.5.
func TestFractionOfACPU(t *testing.T) {
	size, err := (&Flags{CPU: "1.5", Memory: "1.5G"}).ParseSize()
	assert.NoError(t, err)
	text, err := json.Marshal(size)
	want := `{"cpu":"1500m","memory":"1500M"}`
	assert.True(t, err == nil && string(text) == want, "got %s, %v, want %s", text, err, want)
}

// TestReadEnvFile checks which lines of a file are variables.
func TestReadEnvFile(t *testing.T) {
	t.Setenv("FROM_SHELL", "a b")
	path := filepath.Join(t.TempDir(), "env")
	for text, want := range map[string]string{
		"A=1\n# B=2\n\n  C=3 \r\nD=\"x=y\" # z": `A=1|C=3 |D="x=y" # z|`,
		"FROM_SHELL\nNOT_IN_SHELL_1\nE=":        "FROM_SHELL=a b|E=|",
		"A=1\n=secret":                          "line 2 of " + path,
		"not a name=secret":                     "line 1 of " + path,
	} {
		assert.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		got := ""
		err := readEnvFile(path, func(name, value string) { got += name + "=" + value + "|" })
		if err != nil {
			got = err.Error()
		}
		assert.True(t, strings.HasPrefix(got, want) && !strings.Contains(got, "secret"), "%q is %q, want %q", text, got, want)
	}
	f := Flags{envFiles: []string{path, path}, env: []string{"A=flag"}}
	assert.NoError(t, os.WriteFile(path, []byte("A=file\nB=file"), 0o600))
	spec := apply.VirtualMachineSpec()
	assert.NoError(t, f.setEnv(spec))
	assert.True(t, len(spec.Env) == 2 && *spec.Env[0].Value == "flag" && *spec.Env[1].Value == "file", "the variables are %+v", spec.Env)
}
