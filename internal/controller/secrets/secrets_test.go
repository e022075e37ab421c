// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package secrets

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// cluster has Secrets by name, and counts how often each is read.
type cluster struct {
	client.Reader
	secrets map[string]map[string][]byte
	reads   map[string]int
	err     error
}

func (c *cluster) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	c.reads[key.Name]++
	if c.err != nil {
		return c.err
	}
	data, ok := c.secrets[key.Name]
	if !ok || key.Namespace != "default" {
		return apierrors.NewNotFound(corev1.Resource("secrets"), key.Name)
	}
	object.(*corev1.Secret).Data = data
	return nil
}

func from(name, secret, key string) api.EnvVar {
	return api.EnvVar{Name: name, ValueFrom: &api.EnvVarSource{SecretKeyRef: &api.SecretKeySelector{SecretKeyRef: api.SecretKeyRef{Name: secret, Key: key}}}}
}

func optional(v api.EnvVar) api.EnvVar {
	v.ValueFrom.SecretKeyRef.Optional = true
	return v
}

func TestEnv(t *testing.T) {
	t.Parallel()
	long := api.EnvVar{Name: "LONG", Value: strings.Repeat("x", 100<<10)}
	for name, c := range map[string]struct {
		env  []api.EnvVar
		want []string
		err  string
	}{
		"values": {[]api.EnvVar{{Name: "A", Value: "1"}, {Name: "B"}}, []string{"A=1", "B="}, ""},
		"of Secrets": {
			[]api.EnvVar{from("A", "one", "a"), from("B", "one", "b"), from("C", "two", "a"), from("EMPTY", "two", "empty")},
			[]string{"A=secret one\n", "B=secret 漢", "C=secret two", "EMPTY="},
			"",
		},
		"no Secret":              {[]api.EnvVar{{Name: "A"}, from("B", "none", "a")}, nil, `spec.env[1]: Secret "none" does not exist in the VirtualMachine's namespace`},
		"no key":                 {[]api.EnvVar{from("A", "one", "none")}, nil, `spec.env[0]: Secret "one" lacks the key "none"`},
		"optional":               {[]api.EnvVar{optional(from("A", "none", "a")), optional(from("B", "one", "none")), optional(from("C", "one", "a"))}, []string{"C=secret one\n"}, ""},
		"optional and bad":       {[]api.EnvVar{optional(from("A", "one", "nul"))}, nil, `spec.env[0]: the key "nul" of Secret "one" cannot be the value of an environment variable: it must be UTF-8 text without NUL characters`},
		"no text":                {[]api.EnvVar{from("A", "one", "binary")}, nil, "must be UTF-8 text"},
		"the most":               {[]api.EnvVar{from("A", "one", "most")}, []string{"A=" + strings.Repeat("s", maxEnvBytes-3)}, ""},
		"too much":               {[]api.EnvVar{from("AB", "one", "most")}, nil, `spec.env: the variables with the values of Secrets have 131073 bytes: at most 131072 are allowed`},
		"too much with a value":  {[]api.EnvVar{long, from("A", "one", "half")}, nil, "at most 131072 are allowed"},
		"nothing":                {nil, nil, ""},
		"a source of other kind": {[]api.EnvVar{{Name: "A", ValueFrom: &api.EnvVarSource{}}}, []string{"A="}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reader := &cluster{reads: map[string]int{}, secrets: map[string]map[string][]byte{
				"one": {
					"a": []byte("secret one\n"), "b": []byte("secret 漢"), "nul": []byte("secret\x00"), "binary": []byte("secret\xff"),
					"most": []byte(strings.Repeat("s", maxEnvBytes-3)), "half": []byte(strings.Repeat("s", maxEnvBytes/2)),
				},
				"two": {"a": []byte("secret two"), "empty": nil},
			}}
			vm := framework.NewVM("vm").Spec(func(s *api.VirtualMachineSpec) { s.Env = c.env }).Obj()
			var spec driver.ServerSpec
			err := Resolve(t.Context(), reader, vm, &spec)
			assert.Require(t, (c.err != "" || err == nil) && (c.err == "" || (err != nil && strings.Contains(err.Error(), c.err))),
				"the error is %v, want %q in it", err, c.err)
			if c.err != "" && (!errors.Is(err, driver.ErrRetry) || driver.ReasonOf(err) != api.ReasonSecretUnavailable || strings.Contains(err.Error(), "sss")) {
				t.Errorf("the error is %v, reason %s", err, driver.ReasonOf(err))
			}
			got := textsOf(spec.Env)
			assert.True(t, slices.Equal(got, c.want), "the environment is %.200q, want %.200q", got, c.want)
			for name, n := range reader.reads {
				assert.True(t, n <= 1 || reader.secrets[name] == nil, "Secret %s was read %d times", name, n)
			}
		})
	}
}

func textsOf(env []driver.EnvVar) (texts []string) {
	for _, v := range env {
		texts = append(texts, v.Name+"="+v.Value.Reveal())
	}
	return texts
}

// TestForbidden checks that a Secret that may not be read is not as one that is missing, which may be
// optional.
func TestForbidden(t *testing.T) {
	t.Parallel()
	reader := &cluster{reads: map[string]int{}, err: apierrors.NewForbidden(corev1.Resource("secrets"), "one", fmt.Errorf("no role"))}
	vm := framework.NewVM("vm").Spec(func(s *api.VirtualMachineSpec) { s.Env = []api.EnvVar{optional(from("A", "one", "a"))} }).Obj()
	err := Resolve(t.Context(), reader, vm, new(driver.ServerSpec))
	assert.True(t, driver.ReasonOf(err) == api.ReasonSecretUnavailable && strings.Contains(err.Error(), "spec.env[0]: ") && apierrors.IsForbidden(err),
		"the error is %v, reason %s", err, driver.ReasonOf(err))
}
