// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package crd_test

import (
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/yaml"

	"cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/config/crd"
)

// strategy is what kube-apiserver asks about objects of one kind.
type strategy interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
}

// apiServer treats manifests as kube-apiserver does, with kube-apiserver's own
// code, but in process: defaults, schema and CEL.
type apiServer struct {
	schema       *schema.Structural
	spec, status strategy
	namespace    string
}

func newAPIServer(t *testing.T) apiServer {
	t.Helper()
	root := definition(t).Spec.Validation.OpenAPIV3Schema
	structural, err := schema.NewStructural(root)
	if err != nil {
		t.Fatalf("structural schema: %v", err)
	}
	statusSchema := root.Properties["status"]
	main := customresource.NewStrategy(nil, true, v1alpha1.SchemeGroupVersion.WithKind("VirtualMachine"),
		validator(t, root), validator(t, &statusSchema), structural,
		&apiextensions.CustomResourceSubresourceStatus{}, nil, nil)
	return apiServer{schema: structural, spec: main, status: customresource.NewStatusStrategy(main), namespace: "default"}
}

// definition is the CRD as kube-apiserver holds it.
func definition(t *testing.T) *apiextensions.CustomResourceDefinition {
	t.Helper()
	var external apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(crd.VirtualMachine, &external); err != nil {
		t.Fatalf("decode the CRD: %v", err)
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	scheme.Default(&external)
	external.Status.StoredVersions = []string{v1alpha1.SchemeGroupVersion.Version}
	internal := &apiextensions.CustomResourceDefinition{}
	if err := scheme.Convert(&external, internal, nil); err != nil {
		t.Fatalf("convert the CRD: %v", err)
	}
	return internal
}

func validator(t *testing.T, props *apiextensions.JSONSchemaProps) validation.SchemaValidator {
	t.Helper()
	v, _, err := validation.NewSchemaValidator(props)
	if err != nil {
		t.Fatalf("schema: %v", err)
	}
	return v
}

// decode reads a manifest and fills in what the request and the defaults add.
func (s apiServer) decode(t *testing.T, manifest string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	text, err := yaml.YAMLToJSON([]byte(manifest))
	if err == nil {
		err = object.UnmarshalJSON(text)
	}
	if err != nil {
		t.Fatalf("decode the manifest: %v\n%s", err, manifest)
	}
	object.SetNamespace(s.namespace)
	object.SetResourceVersion("1")
	defaulting.PruneNonNullableNullsWithoutDefaults(object.Object, s.schema)
	defaulting.Default(object.Object, s.schema)
	return object
}

func (s apiServer) create(t *testing.T, manifest string) []string {
	t.Helper()
	return messages(s.spec.Validate(t.Context(), s.decode(t, manifest)))
}

func (s apiServer) update(t *testing.T, before, after string) []string {
	t.Helper()
	return messages(s.spec.ValidateUpdate(t.Context(), s.decode(t, after), s.decode(t, before)))
}

func (s apiServer) updateStatus(t *testing.T, before, after string) []string {
	t.Helper()
	return messages(s.status.ValidateUpdate(t.Context(), s.decode(t, after), s.decode(t, before)))
}

// messages leaves out the lines without a field, which repeat the others.
func messages(errs field.ErrorList) []string {
	var texts []string
	for _, err := range errs {
		if !strings.HasPrefix(err.Error(), "<nil>: ") {
			texts = append(texts, err.Error())
		}
	}
	return texts
}
